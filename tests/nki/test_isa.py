"""Every instruction against an independent formulation in NumPy and ml_dtypes."""

from pathlib import Path

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nki.harness import BINARY, FLOATS, INTS, RNG, cast, few, ints, newest_target, normal, numpy_dtype, run, same, shapes, wide  # noqa: F401
from torch_neuronx.nki.opcode import OPCODES

# Copies.


@given(shapes, st.sampled_from(FLOATS + INTS), st.sampled_from(FLOATS + INTS))
@few
def test_tensor_copy(shape, source, target):
    x = normal(*shape, dtype=source) if source in FLOATS else cast(RNG.integers(-300, 300, shape), source)
    got = run(lambda o, a: nisa.tensor_copy(o, a), [x], [(shape, target)])
    expected = x if source == target else cast(wide(x), target)
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8)) if target in INTS else same(got, wide(expected))


@pytest.mark.parametrize("engine", ["vector", "scalar", "gpsimd"])
def test_tensor_copy_keeps_bits(engine):
    x = RNG.integers(0, 2**32, (128, 16), dtype=np.uint32).view(np.float32)
    got = run(lambda o, a: nisa.tensor_copy(o, a, engine=nisa.engine[engine]), [x], [(x.shape, "float32")])
    np.testing.assert_array_equal(got.view(np.uint32), x.view(np.uint32))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("predicate", ["uint8", "uint16", "uint32"])
def test_tensor_copy_predicated(reverse, predicate):
    x, y, p = normal(32, 20), normal(32, 20), ints(32, 20, high=2, dtype=predicate)

    def body(o, a, b, m):
        nisa.tensor_copy(o, b)
        nisa.tensor_copy_predicated(o, a, m, reverse_pred=reverse)

    same(run(body, [x, y, p], [(x.shape, "float32")]), np.where((p != 0) ^ reverse, x, y))


@pytest.mark.parametrize(
    "dtype, value", [("float32", 1.5), ("bfloat16", -2.0), ("float8_e4m3", 0.5), ("int32", 7), ("uint16", 65535), ("int8", -3)]
)
def test_memset(dtype, value):
    assert (wide(run(lambda o: nisa.memset(o, value), [], [((64, 9), dtype)])) == value).all()


def test_nc_stream_shuffle():
    x, mask = normal(128, 8), [(3 * k) % 32 for k in range(31)] + [255]

    def body(o, a):
        nisa.memset(o, 9)
        nisa.nc_stream_shuffle(o, a, mask)

    expected = np.concatenate([x[q : q + 32][[m % 32 for m in mask]] for q in range(0, 128, 32)])
    expected[31::32] = 9
    same(run(body, [x], [(x.shape, "float32")]), expected)


@pytest.mark.parametrize("partitions", [1, 32])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nc_stream_shuffle_of_a_column(dtype, partitions):
    x = normal(partitions, 1, dtype=dtype)

    def body(o, a):
        tiles = [nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf, address=(0, 64 * k)) for k in range(2)]  # whose partitions lie a pitch apart
        nisa.tensor_copy(tiles[0], a)
        nisa.memset(tiles[1], 9)
        nisa.nc_stream_shuffle(tiles[1], tiles[0], [partitions - 1 - k if k < partitions else 255 for k in range(32)])
        nisa.tensor_copy(o, tiles[1])

    same(run(body, [x], [(x.shape, dtype)]), x[::-1])


# Arithmetic.

BITS = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}


@pytest.mark.parametrize("op", BINARY)
@given(shapes, st.sampled_from(FLOATS[:3]), st.sampled_from(FLOATS[:3]), st.sampled_from(FLOATS[:3]))
@settings(max_examples=4, deadline=None)
def test_tensor_tensor(op, shape, one, two, out):
    x, y = normal(*shape, dtype=one), normal(*shape, dtype=two)
    got = run(lambda o, a, b: nisa.tensor_tensor(o, a, b, getattr(nl, op)), [x, y], [(shape, out)])
    same(got, cast(BINARY[op](wide(x), wide(y)).astype(np.float32), out))


def test_tensor_tensor_power():
    x, y = np.abs(normal(32, 20)) + 0.1, normal(32, 20)
    same(run(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.power), [x, y], [(x.shape, "float32")]), x**y, rtol=1e-5)


def test_tensor_tensor_of_integers():
    x, y = ints(32, 8, low=-(2**30), high=2**30), ints(32, 8, low=-(2**30), high=2**30)
    exact = run(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.add), [x, y], [(x.shape, "int32")])
    np.testing.assert_array_equal(exact, x + y)
    rounded = run(lambda o, a, b: nisa.tensor_tensor(o, a, b, nl.add, engine=nisa.engine.vector), [x, y], [(x.shape, "int32")])
    np.testing.assert_array_equal(rounded, cast(wide(x) + wide(y), "int32"))


@pytest.mark.parametrize("op", BITS)
@pytest.mark.parametrize("dtype", INTS)
def test_tensor_tensor_bits(op, dtype):
    x, y = (RNG.integers(0, 2**8 - 1, (16, 12)).astype(numpy_dtype(dtype)) for _ in range(2))
    got = run(lambda o, a, b: nisa.tensor_tensor(o, a, b, getattr(nl, op)), [x, y], [(x.shape, dtype)])
    np.testing.assert_array_equal(got, BITS[op](x, y))


@pytest.mark.parametrize("dtype", ["int32", "uint16", "int8"])
def test_shifts(dtype):
    x = RNG.integers(-100, 100, (16, 12)).astype(np.int64).astype(numpy_dtype(dtype))
    unsigned = x.view(x.dtype.str.replace("i", "u"))
    left, right = (
        run(lambda o, a, op=op: nisa.tensor_scalar(o, a, op, 3), [x], [(x.shape, dtype)]) for op in (nl.left_shift, nl.right_shift)
    )
    np.testing.assert_array_equal(left.view(unsigned.dtype), unsigned << 3)
    np.testing.assert_array_equal(right.view(unsigned.dtype), unsigned >> 3)


@pytest.mark.parametrize("op0, op1", [("multiply", "add"), ("subtract", "maximum"), ("add", None), ("greater", "multiply")])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("vector", [False, True])
def test_tensor_scalar(op0, op1, reverse, vector):
    x, v = normal(64, 21, dtype="bfloat16"), normal(64, 1)

    def body(o, a, s):
        second = {"op1": getattr(nl, op1), "operand1": -0.25} if op1 else {}
        nisa.tensor_scalar(o, a, getattr(nl, op0), s if vector else 1.5, reverse0=reverse, **second)

    operand = v if vector else np.float32(1.5)
    first = BINARY[op0](operand, wide(x)) if reverse else BINARY[op0](wide(x), operand)
    expected = BINARY[op1](first.astype(np.float32), np.float32(-0.25)) if op1 else first
    same(run(body, [x, v], [(x.shape, "float32")]), expected)


@pytest.mark.parametrize(
    "op, reference", [("abs", np.abs), ("rsqrt", lambda a: 1 / np.sqrt(a)), ("reciprocal", lambda a: 1 / a), ("square", np.square)]
)
def test_tensor_scalar_unary(op, reference):
    x = np.abs(normal(32, 9)) + 0.5
    got = run(lambda o, a: nisa.tensor_scalar(o, a, getattr(nl, op), None), [x], [(x.shape, "float32")])
    same(got, reference(x), rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_scalar_tensor_tensor(reverse):
    x, y, v = normal(64, 21), normal(64, 21), normal(64, 1)
    got = run(
        lambda o, a, b, s: nisa.scalar_tensor_tensor(o, a, nl.subtract, s, nl.multiply, b, reverse0=reverse),
        [x, y, v],
        [(x.shape, "float32")],
    )
    same(got, (v - x if reverse else x - v) * y)


def test_reciprocal():
    x = normal(64, 33) + 3
    same(run(lambda o, a: nisa.reciprocal(o, a), [x], [(x.shape, "bfloat16")]), cast(1 / x, "bfloat16"))


@pytest.mark.parametrize("body", [lambda o, a: nisa.activation(o, nl.exp, a), lambda o, a: nisa.tensor_tensor(o, a, a, nl.add)])
def test_elements_at_one_address_take_the_last_value(body):
    """Kernels that want the reduction alone let the result itself go to one column."""
    x = normal(16, 8)
    got = run(lambda o, a: body(o.broadcast(1, 8), a), [x], [((16, 1), "float32")])
    full = run(body, [x], [((16, 8), "float32")])
    np.testing.assert_array_equal(got, full[:, -1:])


def test_broadcast_views_and_ranks():
    x, v = normal(32, 24), normal(32, 4)

    def body(o, a, s):
        nisa.tensor_tensor(o, a, s.reshape((32, 4, 1)).broadcast(2, 6), nl.multiply)

    same(run(body, [x, v], [((32, 24), "float32")]), x * np.repeat(v, 6, 1))


# Scalar engine.

ACTIVATIONS = {
    "copy": lambda x: x,
    "square": np.square,
    "sigmoid": scipy.special.expit,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "gelu_dx": lambda x: scipy.special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * scipy.special.expit(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: scipy.special.expit(1.702 * x) * (1 + 1.702 * x * scipy.special.expit(-1.702 * x)),
    "silu": lambda x: x * scipy.special.expit(x),
    "silu_dx": lambda x: scipy.special.expit(x) * (1 + x * scipy.special.expit(-x)),
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": scipy.special.erf,
    "erf_dx": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "exp": np.exp,
    "sign": np.sign,
    "abs": np.abs,
    "log": lambda x: np.log(np.abs(x)),
    "sin": np.sin,
    "arctan": np.arctan,
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
    "reciprocal": lambda x: 1 / x,
}


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activation(op):
    x = np.clip(normal(64, 40), -1.5, 1.5)
    x = np.where(np.abs(x) < 0.05, 0.05, x).astype(np.float32)
    if op in ("log", "sqrt", "rsqrt"):
        x = np.abs(x)
    got = run(lambda o, a: nisa.activation(o, getattr(nl, op), a), [x], [(x.shape, "float32")])
    same(got, ACTIVATIONS[op](x.astype(np.float64)), rtol=3e-6, atol=3e-7)


def test_activation_scale_bias_reduce():
    x, b, s = normal(64, 40), normal(64, 1), normal(64, 1)

    def body(o, r, a, bias, scale):
        nisa.activation(o, nl.exp, a, bias=bias, scale=scale, reduce_op=nl.add, reduce_res=r, reduce_cmd=nisa.reduce_cmd.reset_reduce)

    got, total = run(body, [x, b, s], [(x.shape, "float32"), ((64, 1), "float32")])
    expected = np.exp(x * s + b)
    same(got, expected, rtol=2e-6)
    same(total, expected.sum(1, keepdims=True), rtol=1e-5)


def test_activation_registers_go_on():
    x = normal(16, 10)

    def body(o, r, a):
        for command in (nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce, nisa.reduce_cmd.reduce):
            nisa.activation(o, nl.copy, a, reduce_op=nl.add, reduce_cmd=command, reduce_res=r)

    same(run(body, [x], [(x.shape, "float32"), ((16, 1), "float32")])[1], 3 * x.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_activation_reduce_of_one_partition():
    x = normal(1, 8)
    got = run(lambda o, r, a: nisa.activation_reduce(o, nl.exp, a, nl.add, r), [x], [(x.shape, "float32"), ((1, 1), "float32")])
    same(got[1], np.exp(x).sum(1, keepdims=True))


def test_sine_outside_its_range():
    got = run(lambda o, a: nisa.activation(o, nl.sin, a), [np.full((1, 1), 9.0, np.float32)], [((1, 1), "float32")])
    assert abs(float(got[0, 0]) - 27.65) < 0.1


@pytest.mark.parametrize("reduce", ["add", "maximum", "minimum", "abs_max", "abs_min"])
def test_activate2(reduce):
    x = normal(32, 12)

    def body(o, r, a):
        nisa.activate2(
            o, nl.prelu, a, 2.0, 0.5, nl.multiply, nl.subtract, relu_param=0.1, reverse1=True, reduce_op=getattr(nl, reduce), reduce_res=r,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip

    got, result = run(body, [x], [(x.shape, "float32"), ((32, 1), "float32")])
    inner = 0.5 - x * 2
    expected = np.where(inner > 0, inner, 0.1 * inner)
    same(got, expected)
    table = {
        "add": np.sum,
        "maximum": np.max,
        "minimum": np.min,
        "abs_max": lambda a, **k: np.abs(a).max(**k),
        "abs_min": lambda a, **k: np.abs(a).min(**k),
    }
    same(np.abs(result) if "abs" in reduce else result, table[reduce](expected, axis=1, keepdims=True), rtol=1e-5)


def test_exponential():
    x, top = normal(32, 12), normal(32, 1)
    got, total = run(
        lambda o, r, a, m: nisa.exponential(o, a, max_value=m, reduce_res=r, reduce_cmd=nisa.reduce_cmd.load_reduce, reduce_init=2.0),
        [x, top], [(x.shape, "float32"), ((32, 1), "float32")],
    )  # fmt: skip
    same(got, np.exp(x - top), rtol=1e-5)
    same(total, 2 + np.exp(x - top).sum(1, keepdims=True), rtol=1e-5)


# Reductions, scans, statistics, searches.


@pytest.mark.parametrize("op, reference", [("add", np.sum), ("multiply", np.prod), ("maximum", np.max), ("minimum", np.min)])
@pytest.mark.parametrize("axis", [(1, 2), 2, -1])
@pytest.mark.parametrize("negate", [False, True])
def test_tensor_reduce(op, reference, axis, negate):
    x = normal(32, 5, 6, dtype="bfloat16")
    shape = (32, 1) if axis == (1, 2) else (32, 5)
    got = run(lambda o, a: nisa.tensor_reduce(o, getattr(nl, op), a, axis, negate=negate), [x], [(shape, "float32")])
    same(got, (-1 if negate else 1) * reference(wide(x), axis=axis).reshape(shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", BITS)
def test_tensor_reduce_bits(op):
    x = ints(16, 9, high=255, dtype="uint8")
    got = run(lambda o, a: nisa.tensor_reduce(o, getattr(nl, op), a, 1), [x], [((16, 1), "uint8")])
    np.testing.assert_array_equal(got, BITS[op].reduce(x, axis=1, keepdims=True))


@pytest.mark.parametrize("op, reference", [("logical_and", np.all), ("logical_or", np.any)])
def test_tensor_reduce_logical(op, reference):
    x = ints(16, 4, high=3, dtype="int32").astype(np.float32)
    same(
        run(lambda o, a: nisa.tensor_reduce(o, getattr(nl, op), a, 1), [x], [((16, 1), "float32")]),
        reference(x != 0, axis=1, keepdims=True),
    )


@pytest.mark.parametrize("reduce, reference", [("add", np.sum), ("maximum", np.max), ("minimum", np.min), ("multiply", np.prod)])
def test_tensor_scalar_reduce(reduce, reference):
    x = normal(32, 10)

    def body(o, r, a):
        nisa.tensor_scalar_reduce(o, a, nl.multiply, 0.5, getattr(nl, reduce), r, reduce_res_negate=True)

    got, result = run(body, [x], [(x.shape, "float32"), ((32, 1), "float32")])
    same(got, x * 0.5)
    same(result, -reference(x * 0.5, axis=1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op1, reference", [("add", np.cumsum), ("multiply", np.cumprod), ("maximum", np.maximum.accumulate)])
def test_tensor_scalar_cumulative(op1, reference):
    x = normal(32, 20)
    got = run(lambda o, a: nisa.tensor_scalar_cumulative(o, a, nl.multiply, getattr(nl, op1), 0.5), [x], [(x.shape, "float32")])
    same(got, reference(x * np.float32(0.5), axis=1), rtol=1e-4, atol=1e-5)


@given(
    shapes,
    st.sampled_from(["multiply", "add", "maximum", "minimum", "subtract", "greater"]),
    st.sampled_from(["add", "multiply", "maximum"]),
    st.booleans(),
)
@few
def test_tensor_tensor_scan(shape, op0, op1, reverse):
    x, y, start = normal(*shape), normal(*shape), normal(shape[0], 1)

    def body(o, a, b, s):
        nisa.tensor_tensor_scan(o, a, b, s, getattr(nl, op0), getattr(nl, op1), reverse0=reverse)

    running, columns = start[:, 0], []
    for k in range(shape[1]):
        pair = (running, x[:, k]) if reverse else (x[:, k], running)
        running = BINARY[op1](BINARY[op0](*pair).astype(np.float32), y[:, k])
        columns.append(running)
    same(run(body, [x, y, start], [(shape, "float32")]), np.stack(columns, 1), rtol=1e-5, atol=1e-5)


def test_bn_stats_and_aggr():
    x = normal(64, 2, 100)

    def body(stats, result, a):
        for k in range(2):
            nisa.bn_stats(stats[:, 6 * k : 6 * k + 6], a[:, k])
        nisa.bn_aggr(result, stats)

    stats, result = run(body, [x], [((64, 12), "float32"), ((64, 2), "float32")])
    even, odd = x[:, 0, 0::2], x[:, 0, 1::2]
    expected = [np.full(64, 50), even.mean(1), even.var(1) * 50, np.full(64, 50), odd.mean(1), odd.var(1) * 50]
    same(stats[:, :6], np.stack(expected, 1), rtol=1e-4, atol=1e-5)
    flat = x.reshape(64, -1)
    same(result, np.stack([flat.mean(1), flat.var(1)], 1), rtol=1e-4, atol=1e-5)


def test_max8():
    x = normal(64, 50)
    same(run(lambda o, a: nisa.max8(o, a), [x], [((64, 8), "float32")]), -np.sort(-x, 1)[:, :8])


def test_nc_find_index8():
    data = np.array([[5, 1, 5, 2, 9, 5, 7, 8, 0]], np.float32)
    vals = np.array([[5, 5, 5, 5, 9, 3, 0, 1]], np.float32)
    got = run(lambda o, a, v: nisa.nc_find_index8(o, a, v), [data, vals], [((1, 8), "uint16")])
    assert got.tolist() == [[0, 2, 5, 65535, 4, 65535, 8, 1]]


def test_nc_match_replace8():
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    vals = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    got, where = run(
        lambda o, w, a, v: nisa.nc_match_replace8(o, a, v, -3.4028235e38, w), [data, vals], [((1, 11), "float32"), ((1, 8), "uint32")]
    )
    assert where.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert (got[0, [2, *range(4, 11)]] < -3e38).all() and got[0, [0, 1, 3]].tolist() == [1, 2, 4]


def test_select_reduce():
    x, p = normal(32, 10), ints(32, 10, high=2, dtype="uint8")
    got, top = run(
        lambda o, r, a, m: nisa.select_reduce(o, m, a, -1.0, r, nisa.reduce_cmd.reset_reduce),
        [x, p],
        [(x.shape, "float32"), ((32, 1), "float32")],
    )  # fmt: skip
    expected = np.where(p != 0, x, -1)
    same(got, expected)
    same(top, expected.max(1, keepdims=True))


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_range_select(out):
    x = normal(32, 20)
    low, high = (ints(32, 1, low=a, high=a + 6).astype(np.float32) for a in (0, 8))
    got, top = run(
        lambda o, r, a, b, c: nisa.range_select(o, a, nl.greater_equal, nl.less, b, c, reduce_res=r, range_start=2),
        [x, low, high], [(x.shape, out), ((32, 1), "float32")],
    )  # fmt: skip
    index = np.arange(20) + 2
    keep = (index >= low) & (index < high)
    expected = np.where(keep, x, np.float32(-3.4028235e38)).astype(np.float32)
    same(got, cast(expected, out))
    same(top, expected.max(1, keepdims=True))


def test_every_row_is_tested_here_or_with_the_collectives():
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_isa*.py"))
    elsewhere = {"device_print", "core_barrier"}
    missing = [name for name, row in OPCODES.items() if f"nisa.{name}(" not in source and row.family not in ("collectives",)]
    assert not set(missing) - elsewhere, missing

"""GpSimd, Tensor engine, DMA, random numbers, registers and microscaling: each instruction against an independent NumPy formulation."""

import math

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nki.harness import BF16, BINARY, RNG, cast, few, ints, newest_target, normal, numpy_dtype, run, same, wide  # noqa: F401

# GpSimd.


def test_iota():
    got = run(lambda o: nisa.iota(o, [[10, 3], [-1, 4]], offset=5, channel_multiplier=100), [], [((32, 12), "int32")])
    expected = 5 + 100 * np.arange(32)[:, None] + (10 * np.arange(3)[:, None] - np.arange(4)).reshape(1, -1)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("op", ["greater_equal", "less", "equal", "not_equal"])
def test_affine_select(op):
    x = normal(32, 32)
    got = run(lambda o, a: nisa.affine_select(o, [[-1, 32]], 1, a, -9.0, getattr(nl, op)), [x], [(x.shape, "float32")])
    value = np.arange(32)[:, None] - np.arange(32)
    same(got, np.where(BINARY[op](value, 0), x, -9))


@pytest.mark.parametrize("e", [1, 4])
def test_local_gather(e):
    x, index = normal(32, 64), ints(32, 2, high=60, dtype="uint16")
    got = run(lambda o, a, k: nisa.local_gather(o, a, k, e), [x, index], [((32, 32 * e), "float32")])
    for group in range(2):
        flat = index[16 * group : 16 * group + 16].flatten(order="F").astype(int)
        columns = (flat[:, None] + np.arange(e)).reshape(-1)
        same(got[16 * group : 16 * group + 16], x[16 * group : 16 * group + 16][:, columns])


def test_nc_n_gather():
    x, index = normal(32, 20, dtype="bfloat16"), ints(32, 7, high=20, dtype="uint32")
    got = run(lambda o, a, k: nisa.nc_n_gather(o, a, k), [x, index], [((32, 7), "bfloat16")])
    np.testing.assert_array_equal(got, np.take_along_axis(x, index.astype(int), 1))


@pytest.mark.parametrize("op, reference", [("add", np.sum), ("average", np.mean), ("max", np.max)])
def test_tensor_partition_reduce(op, reference):
    x = normal(100, 9)
    same(
        run(lambda o, a: nisa.tensor_partition_reduce(o, getattr(nl, op), a), [x], [((1, 9), "float32")]),
        reference(x, 0, keepdims=True),
        rtol=1e-5,
        atol=1e-5,
    )


def test_nonzero_with_count():
    x = ints(32, 10, high=2)

    def body(o, a):
        nisa.memset(o, 77)
        nisa.nonzero_with_count(o, a, index_offset=100)

    got = run(body, [x], [((32, 11), "int32")])
    for row in range(32):
        found = np.nonzero(x[row])[0] + 100
        expected = [*found, *[-1] * (10 - len(found)), len(found)] if row % 16 == 0 else [77] * 11
        assert got[row].tolist() == expected


def test_topk():
    x = normal(16, 8, dtype="bfloat16")
    values, places = run(lambda v, i, a: nisa.topk(v, i, a, 120), [x], [((16, 5), "bfloat16"), ((16, 5), "uint32")])
    flat = wide(x).T.reshape(-1)[:120]
    np.testing.assert_array_equal(wide(values[0]), np.sort(flat)[-5:])
    np.testing.assert_array_equal(flat[places[0].astype(int)], wide(values[0]))


def test_sequence_bounds():
    ids = np.array([[1, 1, 2, 2, 2, 0, 3]], np.float32)
    got = run(lambda o, a: nisa.sequence_bounds(o, a), [ids], [((1, 2, 7), "float32")])
    assert got[0].tolist() == [[0, 0, 2, 2, 2, 7, 6], [2, 2, 5, 5, 5, -1, 7]]


# Tensor engine.


@given(
    st.sampled_from([16, 31, 128]), st.sampled_from([1, 33, 128]), st.sampled_from([1, 100, 512]),
    st.sampled_from(["float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3"]),
)  # fmt: skip
@few
def test_nc_matmul(k, m, n, dtype):
    x, y = normal(k, m, dtype=dtype), normal(k, n, dtype=dtype)
    got = run(lambda o, a, b: nisa.nc_matmul(o, a, b), [x, y], [((m, n), "float32", nl.psum)])
    same(got, wide(x).astype(np.float64).T @ wide(y), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nc_matmul_of_a_strided_column(dtype):
    x, y = normal(128, 64, dtype=dtype), normal(128, 4, 2, dtype=dtype)
    got = run(lambda o, a, b: nisa.nc_matmul(o, a, b[:, 3:4, 0]), [x, y], [((64, 1), "float32", nl.psum)])
    same(got, wide(x).T @ wide(y)[:, 3:4, 0], rtol=1e-5, atol=1e-4)


def test_matmul_accumulates_by_write_history():
    x, y = normal(64, 32), normal(64, 96)

    def body(o, a, b):
        nisa.nc_matmul(o[:, 0:64], a, b[:, 0:64])
        nisa.nc_matmul(o[:, 32:96], a, b[:, 32:96])  # adds to the columns that were written, overwrites the others
        nisa.nc_matmul(o[:, 0:32], a, b[:, 0:32], accumulate=False)

    expected = x.T @ y
    expected[:, 32:64] *= 2
    same(run(body, [x, y], [((32, 96), "float32", nl.psum)]), expected, rtol=1e-4, atol=1e-4)


def test_nc_matmul_double_row():
    x, y = normal(128, 2, 64, dtype="float8_e4m3"), normal(128, 2, 128, dtype="float8_e4m3")
    got = run(lambda o, a, b: nisa.nc_matmul(o, a, b, perf_mode="double_row"), [x, y], [((64, 128), "float32", nl.psum)])
    same(got, np.einsum("krm,krn->mn", wide(x), wide(y)), rtol=1e-4, atol=1e-4)


def test_matmul_transpose_mode_is_exact():
    x = normal(64, 32, dtype="bfloat16")
    x[3, 4] = np.inf
    got = run(lambda o, a, i: nisa.nc_matmul(o, a, i, is_transpose=True), [x, np.eye(64, dtype=BF16)], [((32, 64), "bfloat16", nl.psum)])
    np.testing.assert_array_equal(got, x.T)


@pytest.mark.parametrize("shape, engine, region", [((100, 60), "tensor", nl.psum), ((32, 20), "vector", nl.sbuf)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nc_transpose(shape, engine, region, dtype):
    x = normal(*shape, dtype=dtype)
    got = run(lambda o, a: nisa.nc_transpose(o, a, engine=nisa.engine[engine]), [x], [(shape[::-1], dtype, region)])
    np.testing.assert_array_equal(got, x.T)


# DMA.


def test_dma_copy_casts():
    x = normal(128, 40)
    same(run(lambda o, a: nisa.dma_copy(o, a), [x], [(x.shape, "bfloat16")]), cast(x, "bfloat16"))


def test_dma_gather_and_scatter():
    x, rows = normal(100, 16), RNG.permutation(100)[:64].astype(np.int32)[:, None]

    @nki.jit
    def kernel(x, rows):
        gathered, scattered = (nl.ndarray(s, x.dtype, buffer=nl.shared_hbm) for s in ((64, 16), (100, 16)))
        index, tile = nl.load(rows), nl.ndarray((64, 16), x.dtype)
        nisa.dma_copy(tile, x.ap([[16, 64], [1, 16]], vector_offset=index))
        nisa.dma_copy(gathered, tile)
        nisa.dma_copy(scattered.vector_select(0, index), tile)
        return gathered, scattered

    gathered, scattered = kernel(x, rows)
    same(gathered, x[rows[:, 0]])
    expected = np.full((100, 16), np.nan, np.float32)
    expected[rows[:, 0]] = x[rows[:, 0]]
    same(scattered, expected)


@pytest.mark.parametrize("shape", [(32, 48), (4, 6, 32), (2, 4, 6, 32)])
def test_dma_transpose(shape):
    x = normal(*shape, dtype="bfloat16")
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[len(shape)]

    @nki.jit
    def kernel(x):
        tile = nl.ndarray([shape[a] for a in axes], x.dtype)
        nisa.dma_transpose(tile, x)
        out = nl.ndarray(tile.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    np.testing.assert_array_equal(kernel(x), x.transpose(axes))


def test_dma_compute():
    parts = [normal(64, 9) for _ in range(3)]
    same(run(lambda o, a, b, c: nisa.dma_compute(o, [a, b, c], nl.add), parts, [((64, 9), "float32")]), sum(parts))


# Random numbers, registers, microscaling.


def test_random_numbers():
    def body(bits, uniform, dropped, seed):
        nisa.set_rng_seed(seed)
        nisa.rng(bits)
        nisa.rand2(uniform, -1.0, 3.0)
        nisa.memset(uniform[:, 0:1], 1)
        ones = nl.ones((128, 400), nl.float32)
        nisa.dropout(dropped, ones, 0.25)

    outs = [((128, 400), "uint32"), ((128, 400), "float32"), ((128, 400), "float32")]
    seed = np.array([[5]], np.int32)
    bits, uniform, dropped = run(body, [seed], outs)
    assert len(np.unique(bits)) > 51000 and abs(bits.mean() / 2**32 - 0.5) < 0.01
    assert uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 0.02
    assert abs((dropped == 0).mean() - 0.25) < 0.01
    again = run(body, [seed], outs)
    np.testing.assert_array_equal(bits, again[0])


def test_random_state_round_trip():
    def body(first, second, state):
        nisa.rand_get_state(state)
        nisa.rng(first, engine=nisa.engine.gpsimd)
        nisa.rand_set_state(state)
        nisa.rng(second, engine=nisa.engine.gpsimd)

    first, second, _ = run(body, [], [((128, 10), "uint32"), ((128, 10), "uint32"), ((128, 6), "uint32")])
    np.testing.assert_array_equal(first, second)


def test_registers_and_loops():
    count, x = np.array([[3]], np.int32), normal(8, 16)

    @nki.jit
    def kernel(count, x):
        out = nl.ndarray((8, 2), nl.float32, buffer=nl.shared_hbm)
        tile, total, left = nl.load(x), nl.zeros((8, 1), nl.float32), nl.load(count)
        turns = nisa.register_alloc()
        nisa.register_load(turns, left)

        def add_column(i):
            nisa.tensor_tensor(total, total, tile.select(1, i), nl.add)

        nl.fori_loop(0, turns, add_column)
        condition, product = nisa.register_alloc(), nl.ones((8, 1), nl.float32)
        nisa.register_load(condition, left)

        def double(register):
            nisa.tensor_scalar(product, product, nl.multiply, 2.0)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(register, left)
            return register

        nl.while_loop(condition, double)
        for _ in nl.dynamic_range(turns):
            nisa.tensor_scalar(product, product, nl.add, 1.0)
        nl.store(out[:, 0:1], total)
        nl.store(out[:, 1:2], product)
        return out

    got = kernel(count, x)
    same(got[:, 0], x[:, :3].sum(1), rtol=1e-5)
    same(got[:, 1], np.full(8, 11.0))


def test_register_store_and_move():
    def body(o):
        register = nisa.register_alloc(41)
        nisa.register_move(register, 42)
        nisa.register_store(o, register)

    assert run(body, [], [((1, 1), "int32")]).tolist() == [[42]]


def test_while_register_in_its_legacy_form():
    def body(o, left):
        nisa.memset(o, 0)
        register = nisa.register_alloc()
        nisa.register_load(register, left)
        while register:
            nisa.tensor_scalar(o, o, nl.add, 1.0)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(register, left)

    assert run(body, [np.array([[5]], np.int32)], [((1, 1), "float32")]).tolist() == [[5.0]]


def test_exchange_between_cores():
    @nki.jit
    def kernel(x):
        out, kept = (nl.ndarray((2, 32, 8), x.dtype, buffer=nl.shared_hbm) for _ in range(2))
        me = nl.program_id(0)
        mine, other = nl.load(x[32 * me : 32 * me + 32]), nl.ndarray((32, 8), x.dtype)
        nisa.sendrecv(mine, other, 1 - me, 1 - me, 0)
        nl.store(kept[me], mine)
        nl.store(out[me], other)
        return out, kept

    x = normal(64, 8)
    received, kept = kernel[2](x)
    same(received, np.stack([x[32:], x[:32]]))
    same(kept, x.reshape(2, 32, 8))  # what was sent stays


def test_cores_exchange_uneven_halves_whole():
    """Core 0 has three rows, core 1 two: both send three, of which core 1 wrote two."""

    @nki.jit
    def gather(x):
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        rows, theirs = (3, 2) if me == 0 else (2, 3)
        mine, other = (nl.ndarray((3, x.shape[1]), x.dtype, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(mine[0:rows, :], x[nl.ds(3 * me, rows), :])
        nisa.sendrecv(mine, other, 1 - me, 1 - me, 0)
        nisa.dma_copy(out[me, 3 * me : 3 * me + rows, :], mine[0:rows, :])
        nisa.dma_copy(out[me, 3 - 3 * me : 3 - 3 * me + theirs, :], other[0:theirs, :])
        return out

    x = normal(5, 16)
    np.testing.assert_array_equal(gather[2](x), np.stack([x, x]))


def dequantised(data, scale):
    p, f = data.shape
    rows = np.arange(p // 8) // 4 * 32 + np.arange(p // 8) % 4
    factors = np.exp2(scale[rows].astype(np.float64) - 127).repeat(8, 0)
    return data.view(np.uint8).reshape(p, f, 4).view(numpy_dtype("float8_e4m3fn")).astype(np.float64) * factors[:, :, None]


def test_quantize_and_matmul_mx():
    x, y = normal(128, 64 * 4, dtype="bfloat16"), normal(128, 96 * 4, dtype="bfloat16")

    def body(a8, sa, b8, sb, o, a, b):
        for scale in (sa, sb):
            nisa.memset(scale, 0)
        nisa.quantize_mx(a8, a, sa)
        nisa.quantize_mx(b8, b, sb)
        nisa.nc_matmul_mx(o, a8, b8, sa, sb)

    outs = [((128, n), d) for n in (64, 96) for d in ("float8_e4m3fn_x4", "uint8")]
    a8, sa, b8, sb, o = run(body, [x, y], [*outs, ((64, 96), "float32", nl.psum)])
    group = np.abs(wide(x)[:8, :4]).max()
    assert sa[0, 0] == 127 + math.floor(math.log2(group)) - 7
    left, right = dequantised(a8, sa), dequantised(b8, sb)
    assert np.abs(left.reshape(128, -1) - wide(x)).max() < 0.07 * np.abs(wide(x)).max()
    same(o, np.einsum("kiq,kjq->ij", left, right), rtol=1e-4, atol=1e-3)

"""What only trn3 has: indirect views, wide matrix products, bfloat16 sums, OCP float8, later operators; and that trn2 refuses each."""

import functools

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

from tests.nki.harness import RNG, cast, newest_target, normal, run, same  # noqa: F401

TILE = (32, 48)


def index_of(columns, partitions, group=16):
    """The index tile that names ``columns``, element i at [i % group, i // group], the same in each group of partitions."""
    padded = np.resize(columns, -(-len(columns) // group) * group)
    return np.tile(padded.reshape(-1, group).T, (partitions // group, 1)).astype(np.int32)


def columns_of(count, among):
    return RNG.permutation(among)[:count]


def refused_on_trn2(monkeypatch, match, body, *inputs, outputs=((TILE, "float32"),)):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises((nki.NkiValidationError, ValueError), match=match):
        run(body, inputs, outputs)


GATHERS = {
    "tensor_copy": (lambda o, x, y: nisa.tensor_copy(o, x), lambda x, y: x),
    "tensor_copy on Scalar": (lambda o, x, y: nisa.tensor_copy(o, x, engine=nisa.engine.scalar), lambda x, y: x),
    "tensor_tensor": (lambda o, x, y: nisa.tensor_tensor(o, x, y, nl.add), lambda x, y: x + y),
    "tensor_scalar": (lambda o, x, y: nisa.tensor_scalar(o, x, nl.multiply, 3.0), lambda x, y: x * 3),
    "activation": (lambda o, x, y: nisa.activation(o, nl.exp, x), lambda x, y: np.exp(x)),
    "activate2": (lambda o, x, y: nisa.activate2(o, nl.exp, x, 2.0, 0.5, nl.multiply, nl.add), lambda x, y: np.exp(x * 2 + 0.5)),
    "exponential": (lambda o, x, y: nisa.exponential(o, x), lambda x, y: np.exp(x)),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name):
    body, reference = GATHERS[name]
    x, y, chosen = normal(*TILE), normal(32, 20), columns_of(20, 48)
    got = run(lambda o, a, b, i: body(o, a.indirect(i, num_elem=20), b), [x, y, index_of(chosen, 32)], [((32, 20), "float32")])
    same(got, reference(x[:, chosen], y), rtol=1e-5)


@pytest.mark.parametrize("name", ["tensor_reduce", "tensor_scalar_reduce", "tensor_scalar_cumulative"])
def test_gather_into_reductions(name):
    x, chosen = normal(*TILE), columns_of(16, 48)
    bodies = {
        "tensor_reduce": (lambda o, r, v: nisa.tensor_reduce(r, nl.add, v, axis=1), 1),
        "tensor_scalar_reduce": (lambda o, r, v: nisa.tensor_scalar_reduce(o, v, nl.multiply, 1.0, nl.add, r), 1),
        "tensor_scalar_cumulative": (lambda o, r, v: nisa.tensor_scalar_cumulative(o, v, nl.multiply, nl.add, 1.0), 0),
    }
    body, which = bodies[name]

    def kernel(o, r, a, i):
        nisa.memset(o, 0)
        nisa.memset(r, 0)
        body(o, r, a.indirect(i, 16))

    got = run(kernel, [x, index_of(chosen, 32)], [((32, 16), "float32"), ((32, 1), "float32")])[which]
    expected = x[:, chosen].sum(1, keepdims=True) if which else np.cumsum(x[:, chosen], 1)
    same(got, expected, rtol=1e-4, atol=1e-5)


def test_scatter():
    x, chosen = normal(32, 16), columns_of(16, 48)

    def body(o, a, i):
        nisa.memset(o, -1)
        nisa.tensor_copy(o.indirect(i, 16), a)

    got = run(body, [x, index_of(chosen, 32)], [(TILE, "float32")])
    expected = np.full(TILE, -1, np.float32)
    expected[:, chosen] = x
    same(got, expected)


def test_groups_of_partitions_have_their_own_columns():
    x, halves = normal(*TILE), (columns_of(16, 48), columns_of(16, 48))
    index = np.concatenate([index_of(half, 16) for half in halves])
    got = run(lambda o, a, i: nisa.tensor_copy(o, a.indirect(i, 16)), [x, index], [((32, 16), "float32")])
    same(got, np.concatenate([x[:16, halves[0]], x[16:, halves[1]]]))


def test_gather_into_a_product():
    """The snake of the Tensor engine is 32 partitions long."""
    a, b = normal(64, 96, dtype="bfloat16"), normal(64, 32, dtype="bfloat16")
    chosen = columns_of(32, 96)

    got = run(lambda o, x, y, i: product(o, x.indirect(i, 32), y), [a, b, index_of(chosen, 64, group=32)], [((32, 32), "float32")])
    same(got, a[:, chosen].astype(np.float32).T @ b.astype(np.float32), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "match, body",
    [
        (r"data2 cannot be an .indirect\(\) view; dst and data1 may", lambda o, x, i: nisa.tensor_tensor(o, o, x.indirect(i, 16), nl.add)),
        (r"data cannot be an .indirect\(\) view; no operand", lambda o, x, i: nisa.reciprocal(o, x.indirect(i, 16))),
        (r"src cannot be an .indirect\(\) view", lambda o, x, i: nisa.dma_copy(o, x.indirect(i, 16))),
        ("runs on the vector and scalar engines", lambda o, x, i: nisa.tensor_copy(o, x.indirect(i, 16), engine=nisa.engine.gpsimd)),
        ("index has 16 partitions, the tensor 32", lambda o, x, i: nisa.tensor_copy(o, x.indirect(i[0:16], 16))),
    ],
)
def test_indirect_views_have_their_places(match, body):
    def kernel(o, x, i):
        nisa.memset(o, 0)
        body(o, x, i)

    with pytest.raises(nki.NkiValidationError, match=match):
        run(kernel, [normal(*TILE), index_of(np.arange(16), 32)], [((32, 16), "float32")])


def test_a_column_that_is_not_there():
    index = index_of(np.arange(16), 32)
    index[3, 0] = 48
    with pytest.raises(nki.NkiValidationError, match="column index outside 48 elements"):
        run(lambda o, x, i: nisa.tensor_copy(o, x.indirect(i, 16)), [normal(*TILE), index], [((32, 16), "float32")])


def product(o, x, y, sums=nl.float32):
    psum = nl.ndarray(o.shape, sums, buffer=nl.psum)
    nisa.nc_matmul(psum, x, y)
    nisa.tensor_copy(o, psum)


def test_a_product_over_several_banks(monkeypatch):
    a, b = normal(64, 32), normal(64, 1024)
    outputs = [((32, 1024), "float32")]
    same(run(product, [a, b], outputs), a.T @ b, rtol=1e-4, atol=1e-4)
    refused_on_trn2(monkeypatch, "moving free size 1024 exceeds 512 on trn2", product, a, b, outputs=outputs)


def test_sums_in_bfloat16(monkeypatch):
    a, b, body = normal(64, 32), normal(64, 96), functools.partial(product, sums=nl.bfloat16)
    outputs = [((32, 96), "bfloat16")]
    same(run(body, [a, b], outputs), cast(a.T @ b, "bfloat16"), atol=0.1)
    refused_on_trn2(monkeypatch, "dst must be float32 on trn2", body, a, b, outputs=outputs)


def test_products_of_ocp_float8(monkeypatch):
    a, b = normal(64, 32, dtype="float8_e4m3fn"), normal(64, 96, dtype="float8_e4m3fn")
    outputs = [((32, 96), "float32")]
    same(run(product, [a, b], outputs), a.astype(np.float32).T @ b.astype(np.float32), rtol=1e-5, atol=1e-4)
    refused_on_trn2(monkeypatch, "float8_e4m3fn needs trn3", product, a, b, outputs=outputs)


@pytest.mark.parametrize(
    "op, reference",
    [
        (nl.abs_max, lambda a, b: np.where(np.abs(a) > np.abs(b), a, b)),
        (nl.abs_min, lambda a, b: np.where(np.abs(a) < np.abs(b), a, b)),
    ],
)
def test_operators(op, reference, monkeypatch):
    a, b = normal(*TILE), normal(*TILE)

    def body(o, x, y):
        nisa.tensor_tensor(o, x, y, op)

    same(run(body, [a, b], [(TILE, "float32")]), reference(a, b))
    refused_on_trn2(monkeypatch, "needs trn3", body, a, b)


@pytest.mark.parametrize(
    "body",
    [
        lambda o, x: nisa.exponential(o, x),
        lambda o, x: nisa.activate2(o, nl.exp, x, 1.0, 0.0, nl.multiply, nl.add),
        lambda o, x: nisa.rand2(o, 0.0, 1.0),
        lambda o, x: nisa.tensor_scalar(o, x, nl.square, 0.0),
        lambda o, x: nisa.tensor_scalar(o, x, nl.relu, 0.0),
        lambda o, x: nisa.tensor_copy(o, x.indirect(nl.zeros((32, 3), nl.int32), 48)),
        lambda o, x: nisa.dma_copy(o, x, priority=1),
    ],
    ids=["exponential", "activate2", "rand2", "square", "relu", "indirect", "priority"],
)
def test_runs_on_trn3_and_not_on_trn2(body, monkeypatch):
    x = normal(*TILE)
    assert np.isfinite(run(body, [x], [(TILE, "float32")])).all()
    refused_on_trn2(monkeypatch, "needs trn3", body, x)


def test_the_vector_engine_has_a_generator_state():
    def body(o, p):
        state = nl.ndarray((128, 24), nl.uint32, buffer=nl.psum)
        nisa.rand_get_state(state, engine=nisa.engine.vector)
        nisa.tensor_copy(o, state)
        nisa.rand_set_state(o, engine=nisa.engine.vector)
        nisa.memset(p, 1)

    state, _ = run(body, [], [((128, 24), "uint32"), ((1, 1), "float32")])
    assert state.shape == (128, 24) and len(np.unique(state)) > 2000

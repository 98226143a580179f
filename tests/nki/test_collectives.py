"""Ranks that exchange: each collective against NumPy."""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

from torch_neuronx.nki.errors import NkiValidationError

GROUP = ncc.ReplicaGroup([[0, 1, 2, 3]])
RANKS = 4


def inputs(shape=(8, 16), dtype=np.float32):
    return [np.random.default_rng(rank).standard_normal(shape).astype(dtype) for rank in range(RANKS)]


def through_scratch(x, out_shape, exchange, on_chip=False):
    """x -> scratch -> exchange(scratch, result) -> output."""
    out = nl.ndarray(out_shape, x.dtype, buffer=nl.shared_hbm)
    region = nl.sbuf if on_chip else nl.hbm
    source, target = nl.ndarray(x.shape, x.dtype, buffer=region), nl.ndarray(out_shape, x.dtype, buffer=region)
    nisa.dma_copy(source, x)
    exchange(source, target)
    nisa.dma_copy(out, target)
    return out


def run(exchange, values, out_shape, on_chip=False):
    def kernel(x):
        return through_scratch(x, out_shape, exchange, on_chip)

    return nki.simulate_ranks(kernel)([(value,) for value in values])


@pytest.mark.parametrize("op, reference", [(nl.add, np.sum), (nl.maximum, np.max), (nl.minimum, np.min)])
@pytest.mark.parametrize("on_chip", [False, True])
def test_all_reduce(op, reference, on_chip):
    values = inputs()
    got = run(lambda a, b: ncc.all_reduce([a], [b], GROUP, op), values, (8, 16), on_chip)
    for one in got:
        np.testing.assert_allclose(one, reference(np.stack(values), 0), rtol=1e-6)


@pytest.mark.parametrize("dim, on_chip", [(0, False), (0, True), (1, True)])
def test_all_gather(dim, on_chip):
    values = inputs()
    shape = (32, 16) if dim == 0 else (8, 64)
    got = run(lambda a, b: ncc.all_gather([a], [b], GROUP, dim), values, shape, on_chip)
    for one in got:
        np.testing.assert_array_equal(one, np.concatenate(values, dim))


def test_two_groups():
    values = inputs()
    group = ncc.ReplicaGroup([[0, 2], [3, 1]])
    got = run(lambda a, b: ncc.all_gather([a], [b], group, 0), values, (16, 16))
    np.testing.assert_array_equal(got[0], np.concatenate([values[0], values[2]]))
    np.testing.assert_array_equal(got[1], np.concatenate([values[3], values[1]]))


def test_reduce_scatter():
    values = inputs()
    got = run(lambda a, b: ncc.reduce_scatter([a], [b], GROUP, 0, nl.add), values, (2, 16))
    for rank, one in enumerate(got):
        np.testing.assert_allclose(one, np.sum(values, 0)[2 * rank : 2 * rank + 2], rtol=1e-6)


def test_all_to_all():
    values = inputs()
    got = run(lambda a, b: ncc.all_to_all([a], [b], GROUP, 0), values, (8, 16))
    for rank, one in enumerate(got):
        np.testing.assert_array_equal(one, np.concatenate([v[2 * rank : 2 * rank + 2] for v in values]))


def test_collective_permute():
    values = inputs()
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    got = run(lambda a, b: ncc.collective_permute([a], [b], pairs), values, (8, 16))
    for source, target in pairs:
        np.testing.assert_array_equal(got[target], values[source])


def test_ring_steps():
    values = inputs()
    got = run(lambda a, b: ncc.collective_permute_implicit([[a]], [[b]], GROUP, [0]), values, (8, 16))
    for rank, one in enumerate(got):
        np.testing.assert_array_equal(one, values[rank - 1])
    got = run(lambda a, b: ncc.collective_permute_implicit_reduce([[a]], [[a]], [[b]], GROUP, nl.add), values, (8, 16))
    for rank, one in enumerate(got):
        np.testing.assert_allclose(one, 2 * values[rank - 1])


def test_ranks_know_who_they_are():
    def kernel(x):
        out = nl.ndarray((1, 4), nl.int32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 4), nl.int32)
        nisa.register_store(tile[:, 0:1], ncc.rank_id())
        for step in range(3):
            current = ncc.collective_permute_implicit_current_processing_rank_id(step, GROUP)
            nisa.register_store(tile[:, step + 1 : step + 2], current)
        nisa.dma_copy(out, tile)
        return out

    got = nki.simulate_ranks(kernel)([(np.zeros((1, 1), np.float32),)] * RANKS)
    for rank, one in enumerate(got):
        assert one.tolist() == [[rank, rank, (rank - 1) % RANKS, (rank - 2) % RANKS]]


def variable(function, table):
    """One rank's kernel for the collectives with counts."""

    def kernel(x, metadata):
        out = nl.ndarray((64,), x.dtype, buffer=nl.shared_hbm)
        counts = nl.ndarray(metadata.shape, metadata.dtype, buffer=nl.shared_hbm)
        source, target = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm), nl.zeros((64,), x.dtype, buffer=nl.hbm)
        scratch = nl.ndarray(metadata.shape, metadata.dtype, buffer=nl.hbm)
        nisa.dma_copy(source, x)
        nisa.dma_copy(scratch, metadata)
        function([source], [target], GROUP, scratch)
        nisa.dma_copy(out, target)
        nisa.dma_copy(counts, scratch)
        return out, counts

    values = [np.arange(16, dtype=np.float32) + 100 * rank for rank in range(RANKS)]
    return values, nki.simulate_ranks(kernel)([(values[rank], table[rank]) for rank in range(RANKS)])


def test_all_gather_v():
    table = [np.array([[rank + 1] * 4, [2] * 4, [0] * 4], np.uint32) for rank in range(RANKS)]
    values, got = variable(ncc.all_gather_v, table)
    for out, counts in got:
        assert counts[2].tolist() == [1, 2, 3, 4]
        for sender in range(RANKS):
            np.testing.assert_array_equal(out[16 * sender : 16 * sender + sender + 1], values[sender][2 : 3 + sender])


def test_all_to_all_v():
    table = [np.array([[1, 2, 3, 4], [0, 1, 3, 6], [0] * 4], np.uint32) for _ in range(RANKS)]
    values, got = variable(ncc.all_to_all_v, table)
    for receiver, (out, counts) in enumerate(got):
        assert counts[2].tolist() == [receiver + 1] * 4
        for sender in range(RANKS):
            start = [0, 1, 3, 6][receiver]
            np.testing.assert_array_equal(out[16 * sender : 16 * sender + receiver + 1], values[sender][start : start + receiver + 1])


def test_a_rank_alone_is_told_how_to_run_all():
    with pytest.raises(NkiValidationError, match=r"needs rank 1; 1 rank\(s\) are running.*simulate_ranks"):
        run(lambda a, b: ncc.all_reduce([a], [b], GROUP, nl.add), inputs()[:1], (8, 16))


@pytest.mark.parametrize(
    "exchange, match",
    [
        (lambda a, b: ncc.all_gather([a], [b], GROUP, 1), "collective_dim must be 0 here"),
        (lambda a, b: ncc.all_reduce([a], [b], GROUP, nl.multiply), "op=multiply not supported"),
        (lambda a, b: ncc.all_reduce([a], [b, b], GROUP, nl.add), "as many srcs as dsts"),
        (lambda a, b: ncc.reduce_scatter([a], [b], GROUP, 0, nl.add), "does not fit"),
        (lambda a, b: ncc.collective_permute_implicit([[a]], [[b]], GROUP, [1]), "consecutive from 0"),
    ],
)
def test_refusals(exchange, match):
    with pytest.raises(NkiValidationError, match=match):
        run(exchange, inputs(), (8, 16))

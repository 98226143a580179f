"""Writes into inputs: on the input itself where nothing needs the old values, else on a copy; eager's bits either way."""

import pytest
import torch

from torch_neuronx.compile import registry

DEVICE = "neuron"
PLACE = torch.tensor([1], device=DEVICE)


def kv_cache(cache, x):
    cache.index_copy_(0, PLACE, x[:1])
    return (cache * 2).sum(0)


def twice(cache, x):
    cache.index_copy_(0, PLACE, x[:1])
    cache[:, 1:3] = 7
    return cache @ x.t()


def one_row(cache, x):
    cache[2] = x[0]
    return cache.sum()


def by_mask(cache, x):
    cache[PLACE, 2] = 5
    return cache + x


def old_value_is_needed(cache, x):
    old = cache * 1
    before = cache[1:]
    cache.index_copy_(0, PLACE, x[:1])
    return before.sum() + old.sum() + cache.sum()


def old_value_is_read_later(cache, x):
    new = cache.index_copy(0, PLACE, x[:1])
    total = cache.sum() + new.sum()
    cache.copy_(new)
    return total


def from_itself(cache, x):
    cache[1:] = cache[:-1] * 1
    return cache * 1


def is_returned(cache, x):
    cache.index_copy_(0, PLACE, x[:1])
    return cache


@pytest.mark.parametrize(
    ("function", "in_place"),
    [(kv_cache, True), (twice, True), (one_row, True), (by_mask, True), (old_value_is_needed, None), (old_value_is_read_later, False)]
    + [(from_itself, None), (is_returned, None)],
)
def test_same_bits(function, in_place):
    cache, x = torch.randn(4, 6, device=DEVICE), torch.randn(4, 6, device=DEVICE)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    for _ in range(3):
        mine, theirs = cache.clone(), cache.clone()
        with torch.no_grad():
            expected, actual = function(theirs, x), compiled(mine, x)
        assert torch.equal(actual, expected) and torch.equal(mine, theirs)
    source = registry.graphs()[-1].source
    copies = "aten.copy_.default(arg" in source or "index_copy.default(" in source
    assert in_place is None or copies != in_place, source

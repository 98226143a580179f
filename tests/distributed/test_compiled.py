"""``torch.compile`` with process groups: what ranks may share of PyTorch's on-disk cache. (Compiled training: ``test_examples.py``.)"""

from __future__ import annotations

import torch.distributed as dist

from tests.distributed.workers import Ranks


def keys() -> tuple[str, str, str]:
    from torch_neuronx.compile.backend import _cache_key_tag
    from torch_neuronx.compile.options import Settings

    before, again = _cache_key_tag(Settings()), _cache_key_tag(Settings())
    dist.new_group([0, 1])
    return before, again, _cache_key_tag(Settings())


def test_ranks_and_groups_are_in_the_cache_key(ranks2: Ranks) -> None:
    first, second = ranks2.run(keys)
    for before, again, with_another_group in (first, second):
        assert before == again != with_another_group
    assert first[0] != second[0]

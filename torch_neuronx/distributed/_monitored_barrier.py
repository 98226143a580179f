"""``torch.distributed.monitored_barrier`` on groups of ``neuron``: PyTorch's own asks for the name "gloo" and refuses every other."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def offer() -> None:
    """Puts a function in its place that knows ``neuron`` and leaves all other groups to PyTorch's. Called once, when the backend loads."""
    pytorchs = distributed_c10d.monitored_barrier

    @functools.wraps(pytorchs)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        if distributed_c10d._rank_not_in_group(group) or "neuron" not in dist.get_backend_config(group):
            return pytorchs(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = distributed_c10d._get_default_timeout(dist.get_backend(group))
        limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
        distributed_c10d._check_valid_timeout(limit)
        chosen: Any = group or distributed_c10d._get_default_group()
        if torch.device("cpu") in chosen._device_types:  # its own ranks on the host tell more than a barrier of the device
            return chosen.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)
        backend: Any = chosen._get_backend(torch.device("neuron"))
        return backend.monitored_barrier(limit, wait_all_ranks)

    distributed_c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier

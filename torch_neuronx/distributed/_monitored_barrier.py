"""A barrier that names who did not come. ``torch.distributed.monitored_barrier`` is Gloo's alone and refuses other backends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """``torch.distributed.monitored_barrier`` for groups of ``neuron`` too, with the same arguments.

    Args:
        group: a group of ``neuron``, of ``cpu:gloo,neuron:neuron`` (the barrier is then Gloo's), or of Gloo; the default group when None.
        timeout: a timedelta, or seconds; the group's own when None.
        wait_all_ranks: names all ranks that did not come, where Gloo's would name the first.

    Raises RuntimeError on the ranks that came, naming those that did not come in time.
    """
    if distributed_c10d._rank_not_in_group(group) or "neuron" not in dist.get_backend_config(group):
        return distributed_c10d.monitored_barrier(group, timeout, wait_all_ranks)
    if timeout is None:
        timeout = distributed_c10d._get_default_timeout(dist.get_backend(group))
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    distributed_c10d._check_valid_timeout(limit)
    chosen: Any = group or distributed_c10d._get_default_group()
    if torch.device("cpu") in chosen._device_types:  # its own ranks on the host tell more than a barrier of the device
        return chosen.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)
    backend: Any = chosen._get_backend(torch.device("neuron"))
    return backend.monitored_barrier(limit, wait_all_ranks)

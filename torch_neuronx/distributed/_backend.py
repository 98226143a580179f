"""Registers the backend ``neuron`` with ``torch.distributed``, and makes its groups."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_neuronx import _C, _device
from torch_neuronx.distributed import _sparse

_DEVICE = "neuron"


def register() -> None:
    """Called once, when the backend loads."""
    if dist.is_available():
        dist.Backend.register_backend(_DEVICE, _create, extended_api=True, devices=[_DEVICE])
        _sparse.register()


def _create(options: Any, group_options: Any) -> Any:
    """A ``c10d::Backend`` for one group. ``options`` are c10d's DistributedBackendOptions, ``group_options`` the user's ``pg_options``."""
    _use_the_core_of_this_rank()
    timeout = options.timeout
    if group_options is not None and getattr(group_options, "_timeout", None) is not None:
        timeout = group_options._timeout

    def transport(store: dist.Store, rank: int, size: int) -> Any:
        """What moves bytes between the hosts of a group: this one, or one that is split off it."""
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)

    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    return _C._make_backend(
        options.store,
        options.group_rank,
        options.group_size,
        timeout,
        options.group_id,
        list(options.global_ranks_in_group),
        transport,
        _make_default,
    )


def _make_default(name: str) -> None:
    """Makes this backend the one that the ProcessGroup ``name`` answers for as a whole, which DDP asks for; before its first operation.

    PyTorch 2.13 sets that to Gloo when no backend was named, even though it then makes only the accelerator's, and to nothing for
    "cpu:gloo,neuron:neuron". It gives a backend's maker no ProcessGroup: there is one only once all backends are made.
    """
    from torch.distributed import distributed_c10d

    try:
        group = distributed_c10d._resolve_process_group(distributed_c10d.GroupName(name))
    except RuntimeError:
        return  # a backend that was made without a group
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


def _use_the_core_of_this_rank() -> None:
    """Under ``torchrun`` each rank of a host uses the core of its ``LOCAL_RANK``, unless the script or NEURON_RT_VISIBLE_CORES chose."""
    text = os.environ.get("LOCAL_RANK", "")
    if not text.isdigit():
        return
    local_rank, cores = int(text), _device.device_count()
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = max(int(count) if count.isdigit() else 0, local_rank + 1)
    if ranks > cores:  # on all ranks, so that none waits for one that has no core
        if cores == 1 and os.environ.get("NEURON_RT_VISIBLE_CORES"):
            return  # each rank was given a core of its own
        raise RuntimeError(
            f"There is no NeuronCore for each rank of this host: {ranks} ranks were started, but there are {cores} cores. Start at most "
            "that many (torchrun --nproc-per-node), or choose a larger emulated instance with TORCH_NEURONX_EMULATED_INSTANCE "
            "(NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES limit it)."
        )
    if _device.current_device() == 0 and not _device.is_initialized():
        torch.neuron.set_device(local_rank)  # type: ignore[attr-defined]

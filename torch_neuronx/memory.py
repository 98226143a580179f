"""Memory of the devices: what is in use, limits, giving memory back, and snapshots.

The functions have the names, units (bytes) and statistics keys of ``torch.cuda.memory``. ``device`` is an index, ``"neuron:1"``, a
:class:`torch.device`, or None for the current device; RuntimeError when there is no such device.

Three sums describe a device: what its segments add up to (*reserved*), what of that is in live tensors (*allocated*), and what cannot be
handed out now (*active*: allocated, and freed blocks that another stream may still be using, see :meth:`torch.Tensor.record_stream`).
Always reserved >= active >= allocated; after :func:`torch.neuron.synchronize`, active equals allocated.
"""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from typing import Any

from torch_neuronx import _C
from torch_neuronx._utils import _get_device_index

__all__ = [
    "empty_cache",
    "empty_host_cache",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def _flatten(nested: dict[str, Any]) -> OrderedDict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}, sorted."""
    flat: list[tuple[str, Any]] = []

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                visit(f"{prefix}.{key}" if prefix else key, item)
        else:
            flat.append((prefix, value))

    visit("", nested)
    return OrderedDict(sorted(flat))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The statistics of :func:`memory_stats` as dictionaries in dictionaries; empty while no device is open."""
    if not _C._is_initialized():
        return {}
    return _C._memory_stats(_get_device_index(device, optional=True))


def memory_stats(device: Any = None) -> OrderedDict[str, Any]:
    """All statistics of the device's allocator, by the keys of ``torch.cuda.memory_stats``; empty while no device is open.

    ``{allocated_bytes,reserved_bytes,active_bytes,requested_bytes,inactive_split_bytes,allocation,segment,active,inactive_split}``
    ``.{all,small_pool,large_pool}.{current,peak,allocated,freed}``: bytes, and numbers of blocks or segments. Requests below 1 MiB are
    in the small pool. ``num_alloc_retries``: how often memory was short and the cache was given back; ``num_ooms``: how often that did
    not help. ``workspace_bytes.{current,peak}``: device memory for the temporaries of kernels, not part of the sums above.
    """
    return _flatten(memory_stats_as_nested_dict(device))


def memory_allocated(device: Any = None) -> int:
    """Bytes in live tensors on the device."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes in live tensors since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """Bytes that the allocator holds: tensors and what it keeps for later ones."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """Most bytes that the allocator held since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Makes the present values the peaks."""
    if _C._is_initialized():
        _C._memory_reset_peak(_get_device_index(device, optional=True))


def reset_max_memory_allocated(device: Any = None) -> None:
    """The same as :func:`reset_peak_memory_stats`, as in ``torch.cuda``."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sets the totals (``allocated``, ``freed``) and the counters (``num_...``) to zero."""
    if _C._is_initialized():
        _C._memory_reset_accumulated(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Gives unused memory of all devices back to the machine, after waiting for the work in their queues."""
    if _C._is_initialized():
        _C._memory_empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device. On an emulated device no more is free than the host could give."""
    free, total = _C._memory_info(_get_device_index(device, optional=True))
    return free, total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits this process to a part of the device's memory; beyond it, allocating raises :class:`torch.OutOfMemoryError`.

    ``fraction`` is a float from 0 to 1, else ValueError (TypeError when it is no float). What is held already stays.
    """
    if not isinstance(fraction, float):
        raise TypeError(f"fraction must be a float from 0 to 1, but got {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be from 0 to 1, but got {fraction}")
    _C._memory_set_fraction(_get_device_index(device, optional=True), fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of the device's memory that this process may use; 1.0 unless it was set."""
    return _C._memory_fraction(_get_device_index(device, optional=True))


# ---- Pinned host memory. ----


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The statistics of :func:`host_memory_stats` as dictionaries in dictionaries."""
    return _C._host_memory_stats()


def host_memory_stats() -> OrderedDict[str, Any]:
    """Statistics of the pinned host memory, by the keys of ``torch.cuda.host_memory_stats``: bytes, counts, microseconds."""
    return _flatten(host_memory_stats_as_nested_dict())


def reset_peak_host_memory_stats() -> None:
    """As :func:`reset_peak_memory_stats`, for pinned host memory."""
    _C._host_memory_reset_peak()


def reset_accumulated_host_memory_stats() -> None:
    """As :func:`reset_accumulated_memory_stats`, for pinned host memory."""
    _C._host_memory_reset_accumulated()


def empty_host_cache() -> None:
    """Gives unused pinned host memory back to the machine."""
    _C._host_memory_empty_cache()


# ---- Snapshots. ----

_LEVELS = {None: 0, "state": 1, "alloc": 2, "all": 3}


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
) -> None:
    """Starts, or with ``enabled=None`` stops, recording what the allocators of all devices do, for :func:`_snapshot`.

    ``enabled``: ``"state"`` remembers who allocated what is alive, ``"all"`` also the history of events. ``context``: stack traces for
    what is alive (``"state"``), for allocations (``"alloc"``), for frees too (``"all"``), or None. ``stacks``: ``"python"``, or
    ``"all"`` for C++ frames too. ``max_entries``: events kept for each device. ValueError for other values.
    """
    if enabled not in (None, "state", "all"):
        raise ValueError(f"expected enabled to be None, 'state' or 'all', but got {enabled!r}")
    if context not in _LEVELS:
        raise ValueError(f"expected context to be None, 'state', 'alloc' or 'all', but got {context!r}")
    if stacks not in ("python", "all"):
        raise ValueError(f"expected stacks to be 'python' or 'all', but got {stacks!r}")
    level = 0 if enabled is None else min(_LEVELS[context], 1 if enabled == "state" else 3)
    _C._memory_record_history(enabled is not None, level, enabled == "all", stacks == "all", max_entries, clear_history)


def _snapshot(device: Any = None) -> dict[str, Any]:
    """Segments, blocks and recorded events of all devices, in the form of ``torch.cuda.memory._snapshot()``."""
    return _C._memory_snapshot()


def memory_snapshot() -> list[dict[str, Any]]:
    """The segments of all devices and the blocks in them; see ``torch.cuda.memory._snapshot`` for the keys."""
    return _snapshot()["segments"]


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Saves :func:`_snapshot` to a file that PyTorch's memory visualiser (pytorch.org/memory_viz, ``torch.cuda._memory_viz``) opens."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


# ---- A table for people. ----

_ROWS = (
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "Reserved memory"),
    ("inactive_split_bytes", "Non-releasable memory"),
    ("allocation", "Allocations"),
    ("active", "Active allocs"),
    ("segment", "Reserved segments"),
    ("inactive_split", "Non-releasable allocs"),
)


def _amount(value: int, is_bytes: bool) -> str:
    units = ("B  ", "KiB", "MiB", "GiB", "TiB") if is_bytes else ("   ", "K  ", "M  ")
    step = 1024 if is_bytes else 1000
    for unit in units[:-1]:
        if value < 768 * step:
            return f"{value:6d} {unit}"
        value //= step
    return f"{value:6d} {units[-1]}"


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The statistics of the device as a table; ``abbreviated`` leaves out the rows of the two pools."""
    index = _get_device_index(device, optional=True)
    _C._init()
    stats = memory_stats(index)
    bar = "|" + "=" * 75 + "|"
    title = f"PyTorch neuron memory summary, device ID {index}"
    counts = f"OOMs: {stats['num_ooms']:<12d} | retries: {stats['num_alloc_retries']:<12d}"
    head = f" {'Metric':<21} | {'Cur Usage':^10} | {'Peak Usage':^10} | {'Tot Alloc':^10} | {'Tot Freed':^10} "
    lines = [bar, f"|{title:^75}|", f"|{counts:^75}|", bar, f"|{head:<75}|"]
    pools = (
        [("all", "")] if abbreviated else [("all", ""), ("large_pool", "      from large pool"), ("small_pool", "      from small pool")]
    )
    for key, name in _ROWS:
        lines.append("|" + "-" * 75 + "|")
        for pool, pool_name in pools:
            values = (stats[f"{key}.{pool}.{metric}"] for metric in ("current", "peak", "allocated", "freed"))
            cells = " | ".join(_amount(value, key.endswith("bytes")) for value in values)
            lines.append(f"|{f' {pool_name or name:<21} | {cells}':<75}|")
    return "\n".join([*lines, bar]) + "\n"

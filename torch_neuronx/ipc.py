"""Tensors for other processes of this host, through ``torch.multiprocessing``.

A tensor that goes through a queue or pipe of ``torch.multiprocessing``, or to a spawned process as an argument, arrives on the same device
as a tensor over the *same* memory: what either process writes, both see. Work that was queued before is waited for when the tensor is sent;
from then on the processes order their accesses themselves, as with CUDA. ``tensor.share_memory_()`` has nothing to do.

The memory stays the sender's, and allocated until the sender and every receiver have let go of it or died; the sender notices when it next
sends something or calls :func:`ipc_collect`. A tensor can be received only while its sender lives; afterwards the sender may end. What was
received cannot be sent on, nor resized: ``clone()`` it.
"""

from __future__ import annotations

import multiprocessing.context
import os
import select
import threading
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from torch_neuronx import _C, _device

_sent: dict[int, torch.UntypedStorage] = {}  # by the end of a pipe whose other end the receiver holds
# Descriptors that go to a process which is being made (None: DupFd has copied them already); closed here once it has them.
_spawning: list[tuple[Any, tuple[int, int]]] = []
_lock = threading.Lock()


def ipc_collect() -> None:
    """Gives back the memory of tensors that were sent to other processes and are used neither there nor here."""
    finished = []
    with _lock:
        for item in [*_spawning]:
            popen, descriptors = item
            if popen is None or getattr(popen, "pid", None) is not None:
                _spawning.remove(item)
                for descriptor in descriptors:
                    os.close(descriptor)
        poll = select.poll()
        for end in _sent:
            poll.register(end, 0)  # a hang-up is always reported
        for end, _ in poll.poll(0):
            finished.append(_sent.pop(end))
            os.close(end)
    finished.clear()  # without the lock: a storage may take other things along


def _reduce(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """What a pickle for another process holds instead of ``storage``; of other devices, PyTorch's own answer."""
    if storage.device.type != "neuron":
        return reduce_storage(storage)
    index, nbytes = storage.device.index, storage.nbytes()
    if nbytes == 0:
        return _rebuild_empty, (index,)
    ipc_collect()
    segment, offset = _C._ipc_share(index, storage.data_ptr())
    _device.synchronize(index)
    popen = multiprocessing.context.get_spawning_popen()
    # The receiver closes both; as a child inherits descriptors under their numbers, two tensors of one segment need two.
    memory = os.dup(segment)
    ours, theirs = os.pipe()
    try:
        arguments = (index, DupFd(memory), offset, nbytes, DupFd(theirs), os.getpid())
    finally:
        with _lock:
            _spawning.append((popen, (memory, theirs)))
            _sent[ours] = storage
    return _rebuild, arguments


def _rebuild(index: int, memory: Any, offset: int, nbytes: int, alive: Any, sender: int) -> torch.UntypedStorage:
    try:
        memory = memory.detach()
        try:
            alive = alive.detach()
            return _C._ipc_open(index, memory, offset, nbytes, alive).untyped_storage()
        finally:
            os.close(memory)
    except (OSError, EOFError) as error:
        raise RuntimeError(
            f"A tensor on neuron:{index} cannot be received, because process {sender}, which sent it, has ended ({error!r}). Keep the "
            "sender until the tensor has arrived, or send tensor.cpu() through a file"
        ) from error


def _rebuild_empty(index: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(0, device=torch.device("neuron", index))


def register() -> None:
    """Called once, when the backend loads."""
    ForkingPickler.register(torch.UntypedStorage, _reduce)

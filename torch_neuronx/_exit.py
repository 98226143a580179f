"""Drops what is queued when the script ends by an exception; lets autograd's device threads finish before the interpreter goes.

``backward()`` returns as soon as the gradients are there; the thread that ran it then drops the task, and takes the GIL to drop the Python
context that ``torch/autograd/graph.py`` stores in it (``_stash_obj_in_tls``). In a script that ends right after, that thread would ask for
the GIL of an interpreter that is being finalised, and the process would abort with "terminate called without an active exception". On no
device does PyTorch wait for that thread; on an emulated one, whose kernels compete with it for few cores, it loses the race often.
"""

from __future__ import annotations

import atexit
import sys

import torch

from torch_neuronx import _C, _device, memory

_kept: list[torch.Tensor] = []


def _others_may_see() -> bool:
    """Whether other processes may still get what is queued here: results of collectives, answers to remote calls."""
    distributed = torch.distributed
    if not distributed.is_available():
        return False
    rpc = sys.modules.get("torch.distributed.rpc.api")
    return distributed.is_initialized() or (rpc is not None and rpc._is_current_rpc_agent_set())


def _settle() -> None:
    """A device thread takes one task after the other: when a second backward has run, the first task is gone.

    This one holds nothing of Python: it goes to the engine without the stored context, and its tensors are kept.
    """
    if not _device.is_initialized() or _device._is_in_bad_fork():
        return
    if getattr(sys, "last_type", None) is not None and not _others_may_see():
        # Printed as uncaught: nobody will see what is queued, and after Ctrl-C nobody wants to wait for it.
        _C._drop_launches()
    if not _device.get_device_properties(0).is_emulated:
        # A second backward would need programs of its own. What is queued may still have to be compiled, which takes a living interpreter.
        for index in range(_device.device_count()):
            _device.synchronize(index)
        return
    for index in range(_device.device_count()):
        if memory.memory_stats(index).get("allocation.all.allocated", 0) == 0:
            continue  # no tensor was ever there, so neither was a backward
        leaf = torch.zeros((), device=torch.device("neuron", index), requires_grad=True)
        with torch.enable_grad():
            loss = leaf * 1
        gradient = torch.ones_like(loss)
        _kept.extend((leaf, loss, gradient))
        torch.autograd.Variable._execution_engine.run_backward(
            (loss,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )


def register() -> None:
    """Called once, when the backend loads."""
    atexit.register(_settle)

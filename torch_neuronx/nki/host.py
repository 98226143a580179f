"""PyTorch as tracing and replay need it, whatever the caller has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._mode_utils import no_dispatch


@contextmanager
def plain_torch() -> Iterator[None]:
    """No dispatch or function mode (fake tensors, a default device), no autograd, no inference mode, no autocast.

    A kernel may be met for the first time while a graph is traced or under ``torch.inference_mode()``; what is made for it then serves
    all later calls.
    """
    with no_dispatch(), torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """A tile is too small to share: a team of threads costs more than it saves, above all on busy cores."""
    threads = torch.get_num_threads()
    if threads > 1:  # else nothing is set, neither for this thread nor for the process
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)

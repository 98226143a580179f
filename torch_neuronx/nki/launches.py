"""Launches on the streams of ``neuron``: replays in stream order, on a thread of their own. See docs/dev/nki.md."""

from __future__ import annotations

import atexit
import itertools
import threading
from collections.abc import Callable

import torch

from torch_neuronx import _C, _device

Replay = Callable[[], None]

_numbers = itertools.count(1)
_replays: dict[int, Replay] = {}  # of launches that are in a stream
_lock = threading.Lock()
_thread: threading.Thread | None = None
_closed = False


def enqueue(device: torch.device, replay: Replay) -> bool:
    """Adds a launch to the current stream of ``device``; an error of ``replay`` is that stream's.

    Returns:
        False when the interpreter is about to end, and whoever launches has to replay.

    Raises:
        RuntimeError: the stream is being captured.
    """
    if not start():
        return False
    number = next(_numbers)
    _replays[number] = replay
    try:
        _C._nki_launch(device.index, number)
    except BaseException:
        _replays.pop(number, None)  # not added; or added and run, and this is an error of the stream (NEURON_LAUNCH_BLOCKING)
        raise
    return True


def start() -> bool:
    """Starts the thread, once; False when the interpreter is about to end."""
    global _thread
    with _lock:
        if _thread is None and not _closed:
            _thread = threading.Thread(target=_replay_launches, name="nki-launches", daemon=True)
            _thread.start()
            atexit.register(_close)
    return not _closed


def _replay_launches() -> None:
    from torch_neuronx.nki import windows

    _C._nki_run_on_one_thread()
    while (turn := _C._nki_next_launch())[0]:
        number, kernel, addresses = turn
        error: BaseException | None = None
        try:
            if kernel:
                windows.run(kernel, addresses)
            else:
                _replays.pop(number)()
        except BaseException as raised:
            error = raised
        _C._nki_launch_done(number, error)
        del error


def _close() -> None:
    """While there is an interpreter: what is in the streams is replayed, and the thread ends."""
    global _closed
    _closed = True
    if _device._is_in_bad_fork():
        return  # the thread is the parent's
    errors = []
    for index in range(_device.device_count()):
        try:
            _device.synchronize(index)
        except Exception as error:
            errors.append(error)
    _C._nki_close_launches()
    assert _thread is not None
    _thread.join()
    if errors:
        raise errors[0]

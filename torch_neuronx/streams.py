"""Streams and events of the device, with the methods that ``torch.cuda``'s have."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx._utils import DEVICE, _get_device_index


class Stream(torch.Stream):
    """A queue of work on one device; what is put in it runs in order.

    Args:
        device: device of the stream (default: the current one).
        priority: -1 (high) or 0 (normal, the default). Other numbers are taken as the nearest of the two.

    Streams come from a pool of 32 for each priority and device, so the 33rd is the first one again, as on CUDA.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if {"stream_id", "device_index", "device_type"} & kwargs.keys():
            stream: Stream = super().__new__(cls, **kwargs)
            _C._check_stream(stream.stream_id, stream.device_index, stream.device_type)
            return stream
        if kwargs:
            raise TypeError(f"Stream() got an unexpected keyword argument {next(iter(kwargs))!r}; it takes device and priority")
        index = _get_device_index(device, optional=True)
        return super().__new__(cls, torch.device(DEVICE, index), priority=priority)

    @property
    def priority(self) -> int:
        """-1 (high) or 0 (normal)."""
        return int(_C._stream_priority(self.stream_id, self.device_index, self.device_type))

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority: (0, -1)."""
        lowest, highest = _C._priority_range()
        return lowest, highest

    def record_event(self, event: Any = None) -> Any:
        """Records ``event`` (default: a new one) at this point of the stream and gives it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch_neuronx.Stream device={DEVICE}:{self.device_index} stream_id={self.stream_id:#x}>"


class Event(torch.Event):
    """A point in a stream.

    Args:
        enable_timing: measure when the event is reached, for :meth:`elapsed_time` (default: no).
        blocking: accepted as on CUDA; waiting never spins here.
        interprocess: not supported; raises ValueError.
    """

    _timing: bool

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise ValueError("neuron events cannot be shared between processes; use interprocess=False")
        event: Event = super().__new__(cls, DEVICE, enable_timing=enable_timing, blocking=blocking)
        event._timing = enable_timing
        return event

    def record(self, stream: torch.Stream | None = None) -> None:
        """Records this point of ``stream`` (default: the current stream of the current device)."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Lets later work of ``stream`` (default: the current one) start only after this event."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between this event and ``end_event``, both recorded with ``enable_timing=True`` and reached."""
        # torch.Event's own method takes no subclass of torch.Event as the other event.
        if not isinstance(end_event, torch.Event):
            raise TypeError(f"elapsed_time() expects an Event, but got {type(end_event).__name__}")
        if not (self._timing and getattr(end_event, "_timing", True)):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return float(_C._elapsed_time(self.event_id, end_event.event_id))

    def __repr__(self) -> str:
        return f"<torch_neuronx.Event {self.event_id:#x}>" if self.event_id else "<torch_neuronx.Event uninitialized>"


class StreamContext:
    """Context manager that makes a stream, and its device, current; None changes nothing."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream
        self._previous_device = -1
        self._previous_stream: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._previous_stream = current_stream(self.stream.device_index)
        set_stream(self.stream)  # refuses another backend's stream before anything is changed
        self._previous_device = _C._exchange_device(self.stream.device_index)

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._previous_stream is None:
            return
        set_stream(self._previous_stream)
        _C._exchange_device(self._previous_device)
        self._previous_stream = None


def stream(stream: torch.Stream | None) -> StreamContext:
    """Makes ``stream`` current inside a ``with`` block; None changes nothing."""
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` the current stream of its device on this thread; None changes nothing. The current device stays as it is."""
    if stream is not None:
        _C._set_stream(stream.stream_id, stream.device_index, stream.device_type)


def _from_packed(packed: tuple[int, int, int]) -> Stream:
    stream_id, device_index, device_type = packed
    return Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def current_stream(device: Any = None) -> Stream:
    """The current stream of ``device`` (default: the current one) on this thread."""
    return _from_packed(_C._current_stream(_get_device_index(device, optional=True)))


def default_stream(device: Any = None) -> Stream:
    """The default stream of ``device`` (default: the current one)."""
    return _from_packed(_C._default_stream(_get_device_index(device, optional=True)))

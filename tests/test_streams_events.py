"""Streams and events, as torch.cuda's: order, waits, timing, threads."""

import threading
import time

import pytest
import torch

from tests.threads import on_threads
from torch_neuronx import _C

neuron = torch.neuron


@pytest.fixture(autouse=True)
def idle():
    yield
    for index in range(2):
        neuron.synchronize(index)


def busy(size=256):
    """Some work whose end takes a while."""
    x = torch.randn(size, size, device="neuron")
    for _ in range(20):
        x = (x @ x).tanh()
    return x


def test_current_and_default():
    assert neuron.current_stream() == neuron.default_stream()
    assert neuron.default_stream(1).device == torch.device("neuron:1")
    assert isinstance(neuron.current_stream(), neuron.Stream) and isinstance(neuron.current_stream(), torch.Stream)
    assert neuron.default_stream().stream_id == 0


def test_stream_context_changes_and_restores_stream_and_device():
    stream = neuron.Stream("neuron:1")
    with neuron.stream(stream):
        assert neuron.current_device() == 1 and neuron.current_stream() == stream
        assert neuron.current_stream(0) == neuron.default_stream(0)
    assert neuron.current_device() == 0 and neuron.current_stream(1) == neuron.default_stream(1)
    with stream:  # torch.Stream's own context manager
        assert neuron.current_stream(1) == stream
    assert neuron.current_stream(1) == neuron.default_stream(1)
    with neuron.stream(None):
        assert neuron.current_stream() == neuron.default_stream()


def test_stream_context_after_an_exception():
    with pytest.raises(KeyError), neuron.stream(neuron.Stream()):
        raise KeyError
    assert neuron.current_stream() == neuron.default_stream()


def test_set_stream():
    stream = neuron.Stream()
    neuron.set_stream(stream)
    try:
        assert neuron.current_stream() == stream
    finally:
        neuron.set_stream(neuron.default_stream())
    neuron.set_stream(None)
    assert neuron.current_stream() == neuron.default_stream()


def test_priorities():
    lowest, highest = neuron.Stream.priority_range()
    assert (lowest, highest) == (0, -1)
    assert neuron.Stream(priority=-1).priority == -1 and neuron.Stream().priority == 0
    assert neuron.Stream(priority=-5).priority == -1 and neuron.Stream(priority=7).priority == 0


def test_the_pool_has_32_streams_of_each_priority():
    normal = [neuron.Stream() for _ in range(33)]
    high = [neuron.Stream(priority=-1) for _ in range(33)]
    assert len(set(normal)) == 32 and normal[0] == normal[32]
    assert len(set(high)) == 32 and not set(high) & set(normal)


def test_streams_hash_and_compare():
    stream = neuron.Stream()
    same = neuron.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
    assert stream == same and hash(stream) == hash(same) and stream != neuron.default_stream()
    assert "neuron:0" in repr(stream)


def test_query_and_synchronize():
    stream = neuron.Stream()
    with neuron.stream(stream):
        x = busy()
    while not stream.query():
        pass
    assert torch.isfinite(x).all()
    stream.synchronize()
    neuron.synchronize("neuron:0")


def test_wait_stream_orders_work():
    side = neuron.Stream()
    x = torch.zeros(1 << 16, device="neuron")
    for _ in range(20):
        side.wait_stream(neuron.current_stream())
        with neuron.stream(side):
            x.add_(1)
        neuron.current_stream().wait_stream(side)
        x.mul_(2)
    x.record_stream(side)
    assert x[0].item() == 2.0 * (2**20 - 1) and x[-1].item() == x[0].item()


def test_wait_event_orders_work():
    side, event = neuron.Stream(), neuron.Event()
    x = busy()
    y = x + 1
    event.record()
    with neuron.stream(side):
        event.wait()
        z = y * 2
    side.synchronize()
    assert torch.equal(z.cpu(), (x.cpu() + 1) * 2)


def test_record_event_gives_our_event():
    event = neuron.current_stream().record_event()
    assert isinstance(event, neuron.Event) and isinstance(event, torch.Event)
    event.synchronize()
    assert event.query()
    given = neuron.Event()
    assert neuron.current_stream().record_event(given) is given


def test_a_fresh_event_is_reached():
    event = neuron.Event(blocking=True)
    assert event.query()
    event.synchronize()
    event.wait()
    neuron.current_stream().wait_event(event)


def test_elapsed_time():
    start, end = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True)
    start.record()
    busy()
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000
    assert end.elapsed_time(start) == -start.elapsed_time(end)


def test_elapsed_time_refusals():
    plain, timed = neuron.Event(), neuron.Event(enable_timing=True)
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain.elapsed_time(timed)
    fresh = neuron.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(fresh)
    first, second = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True)
    first.record(neuron.default_stream(0))
    second.record(neuron.default_stream(1))
    first.synchronize()
    second.synchronize()
    with pytest.raises(RuntimeError, match="same device"):
        first.elapsed_time(second)


def test_an_event_belongs_to_its_device():
    event = neuron.Event()
    event.record(neuron.default_stream(0))
    with pytest.raises(RuntimeError, match="does not match recording stream's device index 1"):
        event.record(neuron.default_stream(1))
    neuron.default_stream(1).wait_event(event)


def test_interprocess_events_are_refused():
    with pytest.raises(ValueError, match="interprocess"):
        neuron.Event(interprocess=True)


def test_generic_torch_stream_and_event():
    stream = torch.Stream("neuron:1")
    event = torch.Event("neuron", enable_timing=True)
    with stream:
        torch.ones(3, device="neuron:1").mul_(2)
        event.record(stream)
    event.synchronize()
    assert event.query() and stream.query()
    assert stream.native_handle != 0


def test_streams_are_per_thread():
    stream, seen = neuron.Stream(), []
    with neuron.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(neuron.current_stream()))
        thread.start()
        thread.join()
    assert seen == [neuron.default_stream()]


def test_four_threads_on_four_streams():

    def work(seed):
        with neuron.stream(neuron.Stream()):
            x = torch.full((64, 64), float(seed), device="neuron")
            for _ in range(50):
                x = x + 1
                x = x * 1
            assert torch.equal(x.cpu(), torch.full((64, 64), seed + 50.0))

    on_threads(work)


@pytest.mark.parametrize("adaptive", [False, True])
def test_first_calls_of_one_thread_do_not_write_what_another_still_reads(adaptive):
    """A first call runs inline, on memory that is free in the stream's order: another thread's launches may still have to read it."""
    done = threading.Event()

    def work(k):
        if k == 0:
            for i in range(1500):
                x = torch.full((1, 1000 - i % 90) + (1,) * (i // 90), 7.0, device="neuron")
                (x + x).sum(-1)
            done.set()
        while not done.is_set():
            x = torch.full((1000,), float(k), device="neuron")
            for _ in range(20):
                y = x + 1.0
                x = y * 1.0
                del y
            assert x.tolist() == [k + 20.0] * 1000

    before = _C._set_adaptive_eager(adaptive)
    try:
        on_threads(work, count=3)
    finally:
        done.set()
        _C._set_adaptive_eager(before)


def test_backward_runs_on_the_stream_of_the_forward():
    stream = neuron.Stream()
    with neuron.stream(stream):
        x = torch.ones(8, device="neuron", requires_grad=True)
        y = (x * 3).sum()
    neuron.current_stream().wait_stream(stream)
    y.backward()
    assert x.grad is not None and x.grad.cpu().tolist() == [3.0] * 8


def test_waiting_releases_the_gil():
    done = threading.Event()
    thread = threading.Thread(target=done.set)
    x = busy(512)
    thread.start()
    neuron.synchronize()
    assert done.wait(10) and torch.isfinite(x).all()


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_a_warning_of_queued_work_is_a_python_warning(pause):
    """Whoever runs the kernel: the thread that waits, or (after a pause) the worker."""
    x = torch.ones(3, dtype=torch.complex64, device="neuron")
    torch.set_warn_always(True)
    try:
        x.to(torch.float32)
        for _ in range(2):
            torch.neuron.synchronize()
            with pytest.warns(UserWarning, match="discards the imaginary part"):
                x.to(torch.float32)
                time.sleep(pause)
                torch.neuron.synchronize()
    finally:
        torch.set_warn_always(False)

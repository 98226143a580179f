"""Launches on the streams of `neuron`: in order, without the caller waiting."""

import threading

import nki
import nki.isa as nisa
import nki.language as nl
import pytest
import torch

from tests.nki.small_kernels import add_into
from torch_neuronx.nki.simulator import Simulator


@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out, tile)
    return out


@nki.jit
def pick(x, rows):
    out = nl.ndarray(rows.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(rows.shape, x.dtype, buffer=nl.sbuf)
    nisa.nc_n_gather(tile, nl.load(x), nl.load(rows))
    nl.store(out, tile)
    return out


@pytest.fixture
def hold(monkeypatch):
    """``hold(work)`` runs ``work`` twice, the second time, when all of it is known, with replays that wait.

    It gives the second results, and the event that lets the replays go on.
    """
    go, run = threading.Event(), Simulator.run

    def wait_first(self, inputs, results):
        if not go.wait(60):
            raise TimeoutError("the test did not let replays go on")
        run(self, inputs, results)

    def hold(work):
        go.set()
        work()
        torch.neuron.synchronize()
        go.clear()
        with torch.neuron.explain() as report:
            results = work()
        assert report.syncs == report.misses == 0
        assert not torch.neuron.current_stream().query()
        return results, go

    monkeypatch.setattr(Simulator, "run", wait_first)
    yield hold
    go.set()
    torch.neuron.synchronize()


def test_the_caller_does_not_wait(hold):
    x, total = torch.randn(128, 64, device="neuron"), torch.zeros(128, 64, device="neuron")

    def work():
        total.zero_()
        y = twice(x) + 1
        add_into(y, total)
        seen = twice(total)
        total.fill_(7)
        return seen, total.t().contiguous()

    (seen, turned), go = hold(work)
    go.set()
    torch.testing.assert_close(seen, (x * 2 + 1) * 2)
    assert torch.equal(turned, torch.full_like(turned, 7))


def test_nor_does_a_compiled_graph(hold):
    x = torch.randn(128, 64, device="neuron")
    torch._dynamo.reset()
    step = torch.compile(lambda t: twice(t + 1) - 1, backend="neuron", fullgraph=True)
    got, go = hold(lambda: step(x))
    go.set()
    torch.testing.assert_close(got, (x + 1) * 2 - 1)


def test_memory_that_is_freed_meanwhile_is_used_in_order(hold):
    x, total = torch.randn(128, 64, device="neuron"), torch.zeros(128, 64, device="neuron")

    def work():
        total.zero_()
        for i in range(20):
            add_into(twice(x * i), total)  # three tensors that are dropped at once, in memory that the next turn takes

    _, go = hold(work)
    go.set()
    torch.testing.assert_close(total, x * (2 * sum(range(20))), rtol=1e-4, atol=1e-3)


def test_strided_arguments_are_read_and_written_in_order(hold):
    x, total = torch.randn(64, 128, device="neuron"), torch.zeros(64, 128, device="neuron")

    def work():
        total.fill_(1)
        add_into(x.t(), total.t())
        seen = total.clone()
        total.zero_()
        return seen

    seen, go = hold(work)
    go.set()
    torch.testing.assert_close(seen, x + 1)
    assert torch.equal(total, torch.zeros_like(total))


def test_streams_wait_for_each_other(hold):
    x, side = torch.randn(128, 64, device="neuron"), torch.neuron.Stream()

    def work():
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            y = twice(x)
        torch.neuron.current_stream().wait_stream(side)
        return twice(y)

    z, go = hold(work)
    go.set()
    torch.testing.assert_close(z, x * 4)


def test_another_stream_goes_on(hold):
    x = torch.randn(128, 64, device="neuron")
    y, go = hold(lambda: twice(x))
    with torch.neuron.stream(torch.neuron.Stream()):
        other = (x + 1).cpu()
    assert not torch.neuron.current_stream().query()
    go.set()
    torch.testing.assert_close(other, x.cpu() + 1)
    torch.testing.assert_close(y, x * 2)


def test_many_threads_launch():
    x = torch.randn(128, 64, device="neuron")
    totals = [torch.zeros_like(x) for _ in range(4)]
    torch.neuron.synchronize()

    def work(total):
        with torch.neuron.stream(torch.neuron.Stream()):
            for _ in range(10):
                add_into(twice(x), total)
            torch.neuron.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(total,)) for total in totals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for total in totals:
        torch.testing.assert_close(total, x * 20, rtol=1e-4, atol=1e-4)


def test_an_error_comes_at_the_next_synchronisation_once():
    x = torch.randn(128, 64, device="neuron")
    rows = torch.full((128, 8), 70, dtype=torch.uint32, device="neuron")
    torch.neuron.synchronize()
    pick(x, rows)
    after = twice(x)
    with pytest.raises(nki.NkiValidationError, match=r"test_launches.py:\d+: nc_n_gather: Out-of-bound access: index 70 of 64"):
        torch.neuron.synchronize()
    torch.neuron.synchronize()
    torch.testing.assert_close(after, x * 2)


def test_a_capture_refuses():
    x = torch.randn(128, 64, device="neuron")
    twice(x)
    torch.neuron.synchronize()
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="being captured into a graph"), graph:
        twice(x)
    torch.testing.assert_close(twice(x), x * 2)


KERNEL = """
import torch, nki, nki.isa as nisa, nki.language as nl
@nki.jit
def pick(x, rows):
    out = nl.ndarray(rows.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(rows.shape, x.dtype, buffer=nl.sbuf)
    nisa.nc_n_gather(tile, nl.load(x), nl.load(rows))
    nl.device_print("ran", tile)
    nl.store(out, tile)
    return out
def index(value):
    return torch.full((1, 1), value, dtype=torch.uint32, device="neuron")
x = torch.ones(1, 64, device="neuron")
torch.neuron.synchronize()
"""


def test_blocking_raises_at_the_call(run_python):
    code = KERNEL + "try:\n    pick(x, index(64))\nexcept nki.NkiValidationError as error:\n    print('at the call')\n"
    done = run_python(code, timeout=200, NEURON_LAUNCH_BLOCKING="1")
    assert (done.returncode, done.stdout) == (0, "at the call\n"), done.stderr


def test_what_was_launched_runs_although_the_script_ends(run_python):
    done = run_python(KERNEL + "for _ in range(3): pick(x, index(1))\n", timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ran") == 3


def test_an_error_that_nobody_waited_for_is_told_at_the_end(run_python):
    done = run_python(KERNEL + "pick(x, index(64))\n", timeout=200)
    assert "Out-of-bound access: index 64 of 64" in done.stderr

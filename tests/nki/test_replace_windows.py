"""``nki.replace`` in windows of Adaptive Eager."""

import nki
import nki.isa as nisa
import nki.language as nl
import pytest
import torch

from tests.nki.small_kernels import softmax, softmax_kernel
from torch_neuronx import _C
from torch_neuronx.nki import windows


@nki.jit
def copy_kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out


def shifted(x):
    return torch.relu(x * 2.0) + 1.0


@nki.jit
def shifted_kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.tensor_scalar(tile, tile, nl.maximum, 0.0, op1=nl.add, operand1=1.0)
    nl.store(out, tile)
    return out


def linear(x, w):
    return torch.tanh(x @ w.t())


def linear_of(x, w):
    """As a kernel that takes the weight as it is kept."""
    assert w.is_contiguous()
    return torch.tanh((w @ x.t()).t().contiguous())


def sums(x, y):
    return torch.exp(x + y), torch.exp(x) - y


@nki.jit
def sums_kernel(x, y):
    first, second = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
    a, b = nl.load(x), nl.load(y)
    nl.store(first, nl.exp(nl.add(a, b)))
    nl.store(second, nl.subtract(nl.exp(a), b))
    return first, second


@pytest.fixture(autouse=True)
def adaptive():
    torch.neuron.synchronize()
    before = _C._set_adaptive_eager(True)
    yield
    torch.neuron.synchronize()
    _C._set_adaptive_eager(before)


@pytest.fixture
def replace():
    made = []

    def make(*args, **options):
        made.append(nki.replace(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.remove()


def rows(n=16, columns=32):
    return torch.randn(n, columns, device="neuron")


def rounds(function, *inputs, times=5):
    """What ``function`` gives in each round, compared with the CPU; and how many kernels ran in windows in each."""
    kernels = []
    for turn in range(times):
        inputs = [one + turn / 8 for one in inputs]
        wanted = function(*(one.cpu() for one in inputs))
        torch.neuron.synchronize()
        before = _C._counters()["window_kernels"]
        found = function(*inputs)
        torch.neuron.synchronize()
        kernels.append(_C._counters()["window_kernels"] - before)
        torch.testing.assert_close(found, wanted, check_device=False, rtol=1e-5, atol=1e-5)
    return kernels


def test_kernels_stand_between_other_calls(replace):
    replacement = replace(softmax, softmax_kernel)
    with torch.neuron.explain() as report:
        kernels = rounds(lambda x: softmax(softmax(x.sin() * 3).cos() @ x.T.contiguous()).sum(0), rows(16, 16))
    assert kernels[:1] == [0] and kernels[2:] == [2, 2, 2], kernels
    assert replacement.windows == 2 and replacement.replaced == 0
    assert report.as_dict()["window_kernels"] == sum(kernels) and "NKI kernels" in str(report)


def test_repeated_windows_are_not_searched(replace, monkeypatch):
    replace(softmax, softmax_kernel)
    searched, find = [], windows.find
    monkeypatch.setattr(windows, "find", lambda *args: searched.append(1) or find(*args))
    kernels = rounds(lambda x: softmax(x + 1) * 2, rows(), times=8)
    assert kernels[-4:] == [1] * 4 and len(searched) <= 3, (kernels, len(searched))


def test_nothing_is_searched_once_nothing_is_replaced(replace):
    replacement = replace(softmax, softmax_kernel)
    assert rounds(lambda x: softmax(x - 1) * 3, rows())[-1] == 1
    replacement.remove()
    assert rounds(lambda x: softmax(x - 1) * 3, rows()) == [0] * 5
    assert replace(softmax, softmax_kernel).windows == 0
    assert rounds(lambda x: softmax(x - 1) * 3, rows())[-1] == 1, "windows that are known are searched again"


def test_numbers_are_the_patterns(replace):
    """A number comes with each launch: the window is the same one for another, the kernel's it is not."""
    replacement = replace(shifted, shifted_kernel)

    def by(factor):
        return lambda x: torch.relu(x.exp() * factor) + 1.0

    assert rounds(by(2.0), rows())[-1] == 1
    assert rounds(by(3.0), rows()) == [0] * 5
    assert rounds(by(2.0), rows())[-1] == 1
    assert replacement.windows == 1


def test_arguments_seen_transposed(replace):
    replacement = replace(linear, linear_of)
    assert rounds(lambda x, w: linear(x * 2, w) + 1, rows(8, 16), rows(4, 16))[-1] == 1, replacement.refused


def test_two_results(replace):
    replacement = replace(sums, sums_kernel)

    def function(x, y):
        a, b = sums(x * 0.5, y)
        return a * b, b

    assert rounds(function, rows(), rows())[-1] == 1, replacement.refused


def test_an_inner_value_that_somebody_holds(replace):
    replacement = replace(shifted, shifted_kernel)

    def function(x):
        inner = (x * 1.5) * 2.0
        return torch.relu(inner) + 1.0, inner

    assert rounds(function, rows()) == [0] * 5 and replacement.windows == 0


def test_an_argument_that_is_written_in_between(replace):
    replacement = replace(shifted, shifted_kernel)

    def function(x):
        argument = x.sin()
        doubled = argument * 2.0
        argument.add_(1)
        return torch.relu(doubled) + 1.0, argument

    assert rounds(function, rows()) == [0] * 5
    assert "writes to an argument" in replacement.refused[0]


def test_a_result_that_is_needed_before_the_pattern_ends(replace):
    replacement = replace(sums, sums_kernel)

    def function(x, y):
        first = torch.exp(x + y)
        early = first.sin()
        return first, early, torch.exp(x) - y

    assert rounds(function, rows(), rows()) == [0] * 5
    assert any("before the last operator" in why for why in replacement.refused)


def test_patterns_that_change_something_in_place_are_not_looked_for(replace):
    def pattern(x):
        return torch.exp(x).add_(1.0)

    replacement = replace(pattern, copy_kernel)
    assert rounds(lambda x: pattern(x * 2) * 2, rows()) == [0] * 5 and replacement.windows == 0


def test_a_kernel_that_computes_something_else(replace):
    replace(softmax, copy_kernel)
    x = rows()
    for _ in range(2):
        (softmax(x * 2) + 1).sum()
        torch.neuron.synchronize()
    with pytest.raises(
        RuntimeError, match=r"nki.replace: the kernel does not compute what softmax#\d+ computes, for arguments torch.float32"
    ):
        for _ in range(2):
            (softmax(x * 2) + 1).sum()
            torch.neuron.synchronize()
    torch.neuron.synchronize()  # told once


def test_shapes_that_the_kernel_refuses(replace):
    replacement = replace(softmax, softmax_kernel)
    assert rounds(lambda x: softmax(x * 2) + 1, rows(200, 8)) == [0] * 5
    assert "partition" in replacement.refused[0]


def test_functions_that_would_launch_from_a_replay(replace):
    replacement = replace(softmax, lambda x: torch.zeros(x.shape, device="neuron") + softmax_kernel(x))
    assert rounds(lambda x: softmax(x * 2) + 1, rows()) == [0] * 5
    assert "CPU tensors" in replacement.refused[0]


def test_events_and_streams_wait_for_all_of_a_window(replace):
    replace(softmax, softmax_kernel)
    one, two = torch.neuron.Stream(), torch.neuron.Stream()
    x = rows(128, 512)
    wanted = (softmax(x.cpu() * 2) + 1) * 3
    before = _C._counters()["window_kernels"]
    for _ in range(6):
        one.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(one):
            y = softmax(x * 2) + 1
            event = one.record_event()
        with torch.neuron.stream(two):
            two.wait_event(event)
            z = y * 3
            y.record_stream(two)
        two.synchronize()
        torch.testing.assert_close(z.cpu(), wanted)
    assert _C._counters()["window_kernels"] > before


def test_many_windows_in_flight_keep_their_order(replace):
    replace(shifted, shifted_kernel)
    x = rows(8, 16)
    found, wanted = x, x.cpu()
    for _ in range(40):
        found, wanted = shifted(found.sin()) * 0.5, shifted(wanted.sin()) * 0.5
    torch.testing.assert_close(found.cpu(), wanted)
    before = _C._counters()["window_kernels"]
    found, wanted = x, x.cpu()
    for _ in range(40):
        found, wanted = shifted(found.sin()) * 0.5, shifted(wanted.sin()) * 0.5
    torch.testing.assert_close(found.cpu(), wanted)
    found = x
    for _ in range(40):
        found = shifted(found.sin()) * 0.5
    torch.testing.assert_close(found.cpu(), wanted)
    assert _C._counters()["window_kernels"] > before

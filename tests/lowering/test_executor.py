"""TORCH_NEURONX_EXECUTOR=xla: the emulated device's calls run by their lowering, with PyTorch's results."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_neuronx import _device
from torch_neuronx.lowering.executor import Executor


def train(device: str) -> list[float]:
    """A few steps of a small network with dropout off, batch norm, views, an optimizer in place."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x, y = torch.randn(10, 6).to(device), torch.randint(0, 3, (10,)).to(device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[:, :6]), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training() -> None:
    with Executor() as executor:
        ours = train("neuron")
    assert executor.calls > 50 and not executor.kept
    torch.testing.assert_close(ours, train("cpu"), rtol=1e-4, atol=1e-5)


def strided_writes(x: torch.Tensor) -> Any:
    x[::2, 1:].mul_(3)
    x.t()[1] += x.t()[0]
    return x, x.unfold(1, 2, 1) + 1


def lists(x: torch.Tensor) -> Any:
    torch._foreach_mul_([x[0], x[1]], 2.0)
    return torch._foreach_add([x[0], x[1]], [x[2], x[3]])


def out_arguments(x: torch.Tensor) -> Any:
    fitting, empty = torch.empty_like(x), torch.empty(0, device=x.device)
    return torch.add(x, 1, out=fitting), torch.mul(x, x, out=empty), fitting


def numbers(x: torch.Tensor) -> Any:
    """Numbers of each launch, of which a decomposition looks at some; a 0-dim tensor of the host."""
    return [x.add(x, alpha=alpha) + x.renorm(2.0, 0, alpha) for alpha in (0.5, 2.5)], x * torch.tensor(2.0)


def views_in_place(x: torch.Tensor) -> Any:
    """The argument itself shows its storage in another way."""
    return (x + 1).t_(), (x * 2).unsqueeze_(0), (x + 2).resize_as_(x[:2, :3].clone()) * 1


@pytest.mark.parametrize("function", [strided_writes, lists, out_arguments, numbers, views_in_place])
def test_calls(function: Callable[..., Any]) -> None:
    x = torch.arange(24.0).reshape(4, 6) + 1
    on_device = x.to("neuron")
    with Executor() as executor:
        found = function(on_device)
    assert executor.calls and not executor.kept
    wanted = function(x)
    for ours, theirs in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(wanted), strict=True):
        assert ours.device.type == "neuron" and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)
    torch.testing.assert_close(on_device.cpu(), x)


def test_random_numbers_are_the_devices() -> None:
    draws = []
    for executor in (Executor(), None):
        torch.neuron.manual_seed(3)
        if executor is not None:
            executor.__enter__()
        x = torch.rand(5, 7, device="neuron")
        draws.append((x.cpu(), F.dropout(x, 0.4).cpu(), torch.rand(3, device="neuron").cpu()))
        if executor is not None:
            executor.__exit__(None, None, None)
            assert executor.calls
    for ours, theirs in zip(*draws, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_random_numbers_are_those_of_the_tensors_device() -> None:
    x = torch.zeros(5, device="neuron:1")
    draws = []
    for executor in (Executor(), contextlib.nullcontext()):
        torch.neuron.manual_seed_all(3)
        with executor:
            draws.append((x.clone().uniform_().cpu(), x.clone().uniform_().cpu(), torch.rand(5, device="neuron").cpu()))
    for ours, theirs in zip(*draws, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_never_in_place_of_a_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = _device.get_device_properties(0)._replace(is_emulated=False)
    monkeypatch.setattr(_device, "get_device_properties", lambda device: chip)
    x = torch.ones(3, device="neuron")
    with Executor(), pytest.raises(RuntimeError, match=r"in place of the emulated device, and this is a chip\. Unset it"):
        x + 1


def test_what_does_not_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([0.0, 2.0], device="neuron")
    with Executor() as executor:
        with pytest.raises(RuntimeError, match=r"EXECUTOR=xla: aten::nonzero .*depends on data"):
            x.nonzero()
        monkeypatch.setenv("TORCH_NEURONX_FALLBACK", "warn")
        with pytest.warns(UserWarning, match="aten::nonzero"):
            assert x.nonzero().cpu().tolist() == [[1]]
    assert executor.kept == {"aten::nonzero": 1}


def test_the_variable(run_python: Any) -> None:
    code = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
x = torch.ones(3, 3, device="neuron")
step = torch.compile(lambda x: (x @ x).relu(), fullgraph=True)
print(step(x).sum().item(), _get_current_dispatch_mode().calls > 2)
"""
    done = run_python(code, timeout=250, TORCH_NEURONX_EXECUTOR="xla")
    assert done.stdout.strip() == "27.0 True", done.stdout + done.stderr
    done = run_python("import torch; torch.ones(1, device='neuron')", TORCH_NEURONX_EXECUTOR="llvm")
    assert done.returncode and "accepted values are xla" in done.stderr
    assert "failed to load" not in done.stderr

"""Every optimizer of torch.optim in each of its implementations, five steps equal to the CPU's under the same implementation; schedulers,
averaged models, capturable and differentiable steps."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

import torch_neuronx

DEVICE = "neuron"
STEPS = 5
INFOS = {info.optim_cls.__name__: info for info in optim_db}


def test_all_optimizers_are_here() -> None:
    classes = {name for name in torch.optim.__all__ if isinstance(getattr(torch.optim, name), type)} - {"Optimizer"}
    assert set(INFOS) == classes and len(classes) >= 14


def implementations(info: OptimizerInfo) -> list[tuple[str, dict[str, bool]]]:
    supported = info.supported_impls
    rows: list[tuple[str, dict[str, bool]]] = [("loop", {"foreach": False} if "foreach" in supported else {})]
    return rows + [(name, {name: True}) for name in ("foreach", "fused") if name in supported]


def cases() -> Iterator[Any]:
    for name, info in INFOS.items():
        for label, flags in implementations(info):
            for number, config in enumerate(info.optim_inputs_func(device="cpu")):
                if label != "loop" and {"foreach", "fused", "differentiable"} & config.kwargs.keys():
                    continue
                yield pytest.param(name, {**config.kwargs, **flags}, id=f"{name}-{label}-{number}-{config.desc.replace(' ', '_')}")


def on_device(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


def make_parameters(name: str, seed: int = 0) -> list[nn.Parameter]:
    """Several shapes; Muon takes matrices only."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(7, 5), (16, 16), (3, 40)] if name == "Muon" else [(7, 5), (11,), (2, 3, 4), ()]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def gradients(parameters: list[nn.Parameter], step: int, sparse: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    dense = [torch.randn(p.shape, generator=generator) for p in parameters]
    return [g.to_sparse() if g.dim() and sparse else g for g in dense]


def run(name: str, kwargs: dict[str, Any], device: str, steps: int = STEPS) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    sparse = INFOS[name].only_supports_sparse_grads
    parameters = [nn.Parameter(p.detach().to(device)) for p in make_parameters(name) if p.dim() or not sparse]
    optimizer = getattr(torch.optim, name)(parameters, **kwargs)
    for step in range(steps):
        grads = [g.to(device) for g in gradients(parameters, step, sparse)]

        def closure(grads: list[torch.Tensor] = grads) -> torch.Tensor:
            """A quadratic bowl, tilted by the step's gradients."""
            optimizer.zero_grad()
            loss = sum((p.square().sum() + (p * g).sum()) / 2 for p, g in zip(parameters, grads, strict=True))
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            return loss

        if INFOS[name].step_requires_closure:
            optimizer.step(closure)
            continue
        for p, g in zip(parameters, grads, strict=True):
            p.grad = g
        optimizer.step()
    return parameters, optimizer


def assert_equal(actual: Any, expected: Any, where: str = "state") -> None:
    """The same nested values; tensors on their own devices, within float32's tolerance."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=2e-5, atol=2e-5, msg=lambda text: f"{where}: {text}")
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_equal(actual[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            assert_equal(actual[index], value, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=2e-5), where
    else:
        assert actual == expected, where


@pytest.mark.parametrize(("name", "kwargs"), list(cases()))
def test_five_steps_equal_cpu(name: str, kwargs: dict[str, Any]) -> None:
    # The tensors among the arguments (lr, betas) stay where the test database puts them for the device: on the CPU without capturable.
    expected, cpu = run(name, copy.deepcopy(kwargs), "cpu")
    actual, ours = run(
        name, {key: on_device(value) for key, value in kwargs.items()} if kwargs.get("fused") else copy.deepcopy(kwargs), DEVICE
    )
    assert_equal(actual, expected, "parameters")
    assert_equal(ours.state_dict()["state"], cpu.state_dict()["state"])


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"])
def test_capturable(name: str, foreach: bool) -> None:
    """Keeps its step on the device and never reads it: no wait in a step."""
    expected, _ = run(name, {"foreach": foreach}, "cpu")
    actual, optimizer = run(name, {"foreach": foreach, "capturable": True}, DEVICE)
    assert_equal(actual, expected, "parameters")
    steps = [state["step"] for state in optimizer.state.values()]
    assert all(step.device.type == DEVICE for step in steps)
    with torch_neuronx.explain() as report:
        optimizer.step()
    assert report.syncs == 0 and report.fallbacks == 0


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", [name for name, info in INFOS.items() if "foreach" in info.supported_impls])
def test_capturable_tensor_lr(name: str, foreach: bool) -> None:
    """An lr that lives on the device."""
    if "capturable" not in inspect.signature(getattr(torch.optim, name)).parameters:
        with pytest.raises((ValueError, TypeError)):
            getattr(torch.optim, name)(make_parameters(name), capturable=True)
        return
    lr = 0.01
    expected, _ = run(name, {"lr": lr, "foreach": foreach}, "cpu")
    actual, _ = run(name, {"lr": torch.tensor(lr, device=DEVICE), "foreach": foreach, "capturable": True}, DEVICE)
    assert_equal(actual, expected, "parameters")


@pytest.mark.parametrize("name", [name for name, info in INFOS.items() if "differentiable" in info.supported_impls])
def test_gradient_through_a_step(name: str) -> None:
    def gradient(device: str) -> torch.Tensor:
        start = torch.linspace(0.5, 1.5, 6, device=device).requires_grad_()
        parameter = start.clone()  # not a leaf: a step on a leaf cannot be differentiated
        optimizer = getattr(torch.optim, name)([parameter], differentiable=True)
        for scale in (1.0, 2.0)[: 1 if name in ("Adamax", "Rprop") else 2]:  # their state is changed in place: PyTorch refuses two steps
            parameter.grad = (start * scale).sin()
            optimizer.step()
        return torch.autograd.grad(parameter.square().sum(), start)[0].cpu()

    torch.testing.assert_close(gradient(DEVICE), gradient("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flags", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype, flags: dict[str, bool]) -> None:
    def step(device: str) -> list[nn.Parameter]:
        parameters = [nn.Parameter(p.detach().to(device, dtype)) for p in make_parameters("AdamW")]
        optimizer = torch.optim.AdamW(parameters, **flags)
        for number in range(STEPS):
            for p, g in zip(parameters, gradients(parameters, number, False), strict=True):
                p.grad = g.to(device, dtype)
            optimizer.step()
        return parameters

    for actual, expected in zip(step(DEVICE), step("cpu"), strict=True):
        torch.testing.assert_close(actual.detach().cpu(), expected.detach())


def test_fused_takes_a_grad_scaler() -> None:
    """found_inf stays on the device: the fused step looks at it."""
    parameter = nn.Parameter(torch.ones(4, device=DEVICE))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    for bad in (False, True, False):
        optimizer.zero_grad()
        loss = (parameter * (torch.inf if bad else 1.0)).sum()
        scaler.scale(loss).backward()
        before = parameter.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(parameter, before) == bad
    assert scaler.get_scale() == 4.0


SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.02, anneal_epochs=3),
}


def test_all_schedulers_are_here() -> None:
    assert set(SCHEDULERS) - {"SWALR"} == set(lr_scheduler.__all__) - {"LRScheduler"}


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str, tensor_lr: bool) -> None:
    def train(device: str) -> tuple[list[float], torch.Tensor]:
        parameter = nn.Parameter(torch.linspace(-1, 1, 8, device=device))
        lr = torch.tensor(0.1, device=device) if tensor_lr else 0.1
        optimizer = torch.optim.SGD([parameter], lr=lr, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)
        rates = []
        for _ in range(STEPS):
            loss = parameter.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if name == "ReduceLROnPlateau":
                scheduler.step(torch.ones((), device=device))
            else:
                scheduler.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
        return rates, parameter.detach().cpu()

    (rates, parameter), (expected_rates, expected) = train(DEVICE), train("cpu")
    assert rates == pytest.approx(expected_rates, rel=1e-5)
    torch.testing.assert_close(parameter, expected)


@pytest.mark.parametrize("average", ["swa", "ema"])
@pytest.mark.parametrize("use_buffers", [False, True])
def test_averaged_model(average: str, use_buffers: bool) -> None:
    def train(device: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(device)
        if average == "swa" and use_buffers:
            model[1].num_batches_tracked = None  # type: ignore[assignment]  # PyTorch's average of an integer buffer fails on every device (addcdiv of integers)
        function = swa_utils.get_ema_multi_avg_fn(0.9) if average == "ema" else swa_utils.get_swa_multi_avg_fn()
        averaged = swa_utils.AveragedModel(model, multi_avg_fn=function, use_buffers=use_buffers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(4, 16, 6, generator=torch.Generator().manual_seed(1)).to(device)
        for batch in data:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            averaged.update_parameters(model)
        if not use_buffers:
            swa_utils.update_bn(list(data), averaged, device=device)
        return dict(averaged.state_dict()), dict(model.state_dict())

    for actual, expected in zip(train(DEVICE), train("cpu"), strict=True):
        assert_equal(actual, expected)


@pytest.mark.parametrize("flags", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["loop", "foreach", "fused"])
def test_state_moves_between_devices(flags: dict[str, bool]) -> None:
    """A checkpoint written on the CPU goes on on the device, and the other way round."""
    expected, _ = run("AdamW", flags, "cpu", 5)
    for first, second in (("cpu", DEVICE), (DEVICE, "cpu")):
        begun, optimizer = run("AdamW", flags, first, 2)
        parameters = [nn.Parameter(p.detach().to(second)) for p in begun]
        resumed = torch.optim.AdamW(parameters, **flags)
        resumed.load_state_dict(optimizer.state_dict())
        assert all(state["exp_avg"].device.type == second for state in resumed.state.values())
        for step in (2, 3, 4):
            for p, g in zip(parameters, gradients(parameters, step, False), strict=True):
                p.grad = g.to(second)
            resumed.step()
        assert_equal([p.detach().cpu() for p in parameters], [p.detach() for p in expected])


def test_parameters_of_two_devices_in_one_optimizer() -> None:
    expected, _ = run("Adam", {}, "cpu")
    parameters = [nn.Parameter(p.detach().to(device)) for p, device in zip(make_parameters("Adam"), ["cpu", DEVICE] * 2, strict=True)]
    optimizer = torch.optim.Adam(parameters, foreach=True)
    for step in range(STEPS):
        for p, g in zip(parameters, gradients(parameters, step, False), strict=True):
            p.grad = g.to(p.device)
        optimizer.step()
    assert_equal([p.detach().cpu() for p in parameters], [p.detach() for p in expected])


def test_fused_refuses_what_it_cannot_do() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.complex64, device=DEVICE))
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RuntimeError, match="floating point Tensors"):
        torch.optim.Adam([parameter], fused=True).step()
    with pytest.raises(RuntimeError, match="cannot be `True` together"):
        torch.optim.Adam(make_parameters("Adam"), fused=True, foreach=True)

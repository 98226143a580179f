"""OptimizerInfo: every optimizer in each of its implementations, with each option that PyTorch's database lists, against the CPU.

The class bears the name that PyTorch's own skips and tolerances name.
"""

import copy
import pickle
import warnings
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo, optim_db, optims
from torch.testing._internal.common_utils import TestCase, parametrize
from torch.utils._pytree import tree_map_only

from .reference import assert_matches

STEPS = 5
IMPLEMENTATIONS = ("forloop", "foreach", "fused")
SHAPES = [(7, 5), (11,), (2, 3, 4), ()]
EMPTY = (0,)  # Adafactor divides by the number of elements, on every device
MATRICES = [(7, 5), (16, 16), (3, 40)]  # Muon takes nothing else


def flags_of(info: OptimizerInfo, implementation: str) -> dict[str, bool] | None:
    """The constructor's arguments that choose ``implementation``; None when the optimizer has no such one."""
    if implementation == "forloop":
        return {"foreach": False} if "foreach" in info.supported_impls else {}
    return {implementation: True} if implementation in info.supported_impls else None


def options_of(info: OptimizerInfo, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """The database's options, those with ``capturable`` for CUDA included."""
    for entry in info.optim_inputs_func(device="cuda", dtype=dtype):
        if not {"foreach", "fused", "differentiable"} & entry.kwargs.keys():
            yield entry.kwargs


def on_device(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    """The options for ``device``: a capturable or fused optimizer holds its tensors there; the CPU has no ``capturable``."""
    kwargs = copy.deepcopy(kwargs)
    if torch.device(device).type == "cpu":
        if kwargs.pop("capturable", False) and kwargs.get("foreach"):  # foreach takes a tensor where it is capturable
            return tree_map_only(torch.Tensor, torch.Tensor.item, kwargs)
    elif kwargs.get("capturable") or kwargs.get("fused"):
        return tree_map_only(torch.Tensor, lambda value: value.to(device), kwargs)
    return kwargs


class Training:
    """An optimizer over a few parameters, whose gradients depend on the step and not on the device."""

    def __init__(self, info: OptimizerInfo, kwargs: dict[str, Any], device: str, dtype: torch.dtype = torch.float32) -> None:
        self.info, self.device, self.dtype = info, device, dtype
        generator = torch.Generator().manual_seed(0)
        shapes = MATRICES if info.name == "Muon" else SHAPES if info.name == "Adafactor" else [*SHAPES, EMPTY]
        if info.only_supports_sparse_grads:
            shapes = [shape for shape in shapes if shape and 0 not in shape]
        self.parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype).to(device)) for shape in shapes]
        self.optimizer = info.optim_cls(self.parameters, **on_device(kwargs, device))

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(100 + number)
        grads = [torch.randn(p.shape, generator=generator).to(self.dtype).to(self.device) for p in self.parameters]
        if self.info.only_supports_sparse_grads:
            grads = [grad.to_sparse() for grad in grads]

        def closure() -> torch.Tensor:
            """A quadratic bowl, tilted by the step's gradients."""
            self.optimizer.zero_grad()
            losses = [(p.abs().square().sum() + (p * g).sum().abs()) / 2 for p, g in zip(self.parameters, grads, strict=True)]
            loss = torch.stack(losses).sum()
            loss.backward()
            return loss

        if self.info.step_requires_closure:
            self.optimizer.step(closure)
            return
        for p, g in zip(self.parameters, grads, strict=True):
            p.grad = g
        self.optimizer.step()

    def steps(self, numbers: range = range(STEPS)) -> "Training":
        for number in numbers:
            self.step(number)
        return self

    def state(self) -> Any:
        """Moments and the like, by parameter; a capturable optimizer's step may be on the device, another's is on the CPU."""
        return self.optimizer.state_dict()["state"]


class TestOptimRenewed(TestCase):
    def assert_same_training(self, actual: Training, expected: Training) -> None:
        assert_matches(self, actual.parameters, expected.parameters, actual.device)
        states = tree_map_only(torch.Tensor, lambda value: value.cpu(), actual.state())
        self.assertEqual(states, expected.state())

    def cpu(self, info: OptimizerInfo, kwargs: dict[str, Any], dtype: torch.dtype) -> Training | None:
        """The CPU's training; None where the CPU refuses these options."""
        try:
            return Training(info, kwargs, "cpu", dtype).steps()
        except (RuntimeError, ValueError, TypeError):
            return None

    def check(self, device: str, dtype: torch.dtype, info: OptimizerInfo, implementation: str, options: list[dict[str, Any]]) -> None:
        flags = flags_of(info, implementation)
        if flags is None:
            self.skipTest(f"{info.name} has no {implementation} implementation")
        compared = 0
        for option in options:
            expected = self.cpu(info, {**option, **flags}, dtype)
            if expected is None:
                continue
            compared += 1
            with self.subTest(options=str(option)):
                self.assert_same_training(Training(info, {**option, **flags}, device, dtype).steps(), expected)
        if not compared:
            self.skipTest("the CPU refuses all options")

    @parametrize("implementation", IMPLEMENTATIONS)
    @optims(optim_db)
    def test_steps(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo, implementation: str) -> None:
        """Parameters and state after five steps, with each option of the database."""
        self.check(device, dtype, optim_info, implementation, list(options_of(optim_info, dtype)))

    @parametrize("implementation", IMPLEMENTATIONS)
    @optims(optim_db, dtypes=[torch.float64, torch.float16, torch.bfloat16, torch.complex64])
    def test_dtypes(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo, implementation: str) -> None:
        self.check(device, dtype, optim_info, implementation, [{}])

    @parametrize("implementation", IMPLEMENTATIONS)
    @optims(optim_db)
    def test_tensor_lr(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo, implementation: str) -> None:
        """A tensor for ``lr`` gives what a number gives, on the CPU or (fused, capturable) on the device."""
        lr = 0.015625  # a power of two: float32 and double agree
        capturable = [{"lr": torch.tensor(lr), "capturable": True}] if optim_info.has_capturable_arg else []
        self.check(device, dtype, optim_info, implementation, [{"lr": torch.tensor(lr)}, *capturable])

    @optims([info for info in optim_db if "differentiable" in info.supported_impls])
    def test_differentiable(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """The gradient through a step."""

        def gradient(where: str) -> torch.Tensor:
            start = torch.linspace(0.5, 1.5, 6).reshape(2, 3).to(where).requires_grad_()
            parameter = start.clone()
            optimizer = optim_info.optim_cls([parameter], differentiable=True)
            parameter.grad = start.sin()
            optimizer.step()
            return torch.autograd.grad(parameter.square().sum(), start)[0]

        assert_matches(self, gradient(device), gradient("cpu"), device)

    @optims([info for info in optim_db if info.optim_error_inputs_func is not None])
    def test_errors(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """The database's errors, with parameters on the device."""

        def place(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                moved = value.detach().to(device).requires_grad_(value.requires_grad)
                placed = nn.Parameter(moved) if isinstance(value, nn.Parameter) else moved
                placed.grad = None if value.grad is None else value.grad.to(device)
                return placed
            if isinstance(value, list):
                seen: dict[int, Any] = {}
                return [seen.setdefault(id(item), place(item)) for item in value]
            if isinstance(value, tuple):
                return tuple(map(place, value))
            return {key: place(item) for key, item in value.items()} if isinstance(value, dict) else value

        for error in optim_info.optim_error_inputs_func(device="cpu", dtype=dtype):
            entry = error.optimizer_error_input
            if "more than one parameter group" in error.error_regex:
                shared = nn.Parameter(torch.ones(1, 1, device=device))
                parameters: Any = [{"params": shared}, {"params": shared}]
            else:
                parameters = place(entry.params if entry.params is not None else [nn.Parameter(torch.randn(2, 3))])
            with self.subTest(error=entry.desc):
                expect = self.assertWarnsRegex if issubclass(error.error_type, Warning) else self.assertRaisesRegex
                with expect(error.error_type, error.error_regex):
                    optimizer = optim_info.optim_cls(parameters, **entry.kwargs)
                    if error.error_on is OptimizerErrorEnum.STEP_ERROR:
                        optimizer.step()

    @parametrize("implementation", IMPLEMENTATIONS)
    @optims(optim_db)
    def test_save_load(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo, implementation: str) -> None:
        """Training that goes on from a file equals training in one go; over the CPU too, both ways."""
        flags = flags_of(optim_info, implementation)
        if flags is None:
            self.skipTest(f"{optim_info.name} has no {implementation} implementation")
        expected = Training(optim_info, flags, "cpu").steps()
        for first, second in ((device, device), (device, "cpu"), ("cpu", device)):
            begun = Training(optim_info, flags, first).steps(range(2))
            file = BytesIO()
            torch.save(begun.optimizer.state_dict(), file)
            file.seek(0)
            resumed = Training(optim_info, flags, second)
            with torch.no_grad():
                for ours, theirs in zip(resumed.parameters, begun.parameters, strict=True):
                    ours.copy_(theirs)
            resumed.optimizer.load_state_dict(torch.load(file, weights_only=True))
            self.assert_same_training(resumed.steps(range(2, STEPS)), expected)

    @optims(optim_db)
    def test_copies(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """``deepcopy`` and ``pickle`` of an optimizer keep state and options."""
        begun = Training(optim_info, {}, device).steps(range(2))
        for twin in (copy.deepcopy(begun.optimizer), pickle.loads(pickle.dumps(begun.optimizer))):
            self.assertEqual(twin.state_dict(), begun.optimizer.state_dict())

    @optims(optim_db)
    def test_hooks(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """Step and state_dict hooks run, in order; their handles remove them."""
        calls: list[str] = []
        training = Training(optim_info, {}, device)
        optimizer = training.optimizer
        handles = [
            optimizer.register_step_pre_hook(lambda *args: calls.append("pre")),
            optimizer.register_step_post_hook(lambda *args: calls.append("post")),
            optimizer.register_state_dict_pre_hook(lambda *args: calls.append("save")),
            optimizer.register_state_dict_post_hook(lambda *args: calls.append("saved")),
            optimizer.register_load_state_dict_pre_hook(lambda *args: calls.append("load")),
            optimizer.register_load_state_dict_post_hook(lambda *args: calls.append("loaded")),
        ]
        training.step(0)
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(calls, ["pre", "post", "save", "saved", "load", "loaded"])
        for handle in handles:
            handle.remove()
        training.step(1)
        self.assertEqual(len(calls), 6)

    @optims([info for info in optim_db if info.supports_param_groups])
    def test_param_groups(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """Groups with their own ``lr``, one added later."""

        def train(where: str) -> Training:
            training = Training(optim_info, {}, where)
            matrix = nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3).to(where))
            training.optimizer.add_param_group({"params": [matrix], "lr": 0.125})
            training.parameters.append(matrix)
            return training.steps()

        self.assert_same_training(train(device), train("cpu"))

    @optims(optim_db)
    def test_schedulers(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        """The schedulers that the database pairs with the optimizer."""

        def train(where: str, makers: Any) -> Training:
            training = Training(optim_info, {}, where)
            schedulers = [make(training.optimizer) for make in makers]
            for number in range(STEPS):
                training.step(number)
                for scheduler in schedulers:
                    loss = (torch.ones((), device=where),)
                    scheduler.step(*(loss if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else ()))
            return training

        for makers in optim_info.scheduler_inputs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                actual, expected = train(device, makers), train("cpu", makers)
            self.assertEqual(
                [group["lr"] for group in actual.optimizer.param_groups], [group["lr"] for group in expected.optimizer.param_groups]
            )
            self.assert_same_training(actual, expected)

    @parametrize("implementation", IMPLEMENTATIONS)
    @optims([info for info in optim_db if info.supports_multiple_devices])
    def test_mixed_device_dtype(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo, implementation: str) -> None:
        """Parameters of two devices and two dtypes in one optimizer."""
        flags = flags_of(optim_info, implementation)
        if flags is None or optim_info.only_supports_sparse_grads:
            self.skipTest(f"{optim_info.name} has no {implementation} implementation for dense gradients")

        def train(places: list[str]) -> list[torch.Tensor]:
            kinds = [(place, kind) for place in places for kind in (torch.float32, torch.bfloat16)]
            start = torch.linspace(-2, 2, 12).reshape(3, 4)
            parameters = [nn.Parameter(start.to(place, kind, copy=True)) for place, kind in kinds]
            optimizer = optim_info.optim_cls(parameters, **flags)
            for number in range(STEPS):
                for p in parameters:
                    p.grad = torch.cos(start + number).to(p.dtype).to(p.device)
                optimizer.step()
            return [p.detach().cpu() for p in parameters]

        self.assertEqual(train(["cpu", device]), train(["cpu", "cpu"]))


CLASSES = [TestOptimRenewed]

"""ModuleInfo: every module of ``torch.nn`` in PyTorch's database, on a device, against the same module on the CPU.

The classes and tests bear the names that PyTorch's own skips and tolerances name.
"""

import copy
import pickle
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, ModuleInput, TrainEvalMode, module_db, modules
from torch.testing._internal.common_utils import TestCase, gradcheck, gradgradcheck
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.opinfo.forms import cotangents
from tests.opinfo.samples import Placement

from .reference import assert_matches, draws, seeded

# Second derivatives by finite differences: inputs and parameters of at most this many elements in all.
GRADGRAD_ELEMENTS = 200


class Case:
    """One entry of the database: how to build the module and call it on a device."""

    def __init__(self, info: ModuleInfo, entry: ModuleInput, dtype: torch.dtype, training: bool) -> None:
        self.info, self.entry, self.dtype, self.training = info, entry, dtype, training
        construct = entry.constructor_input
        with seeded("cpu"):
            self.host = info.module_cls(*construct.args, **construct.kwargs).to(dtype).train(training)
            if info.is_lazy:
                self.call(self.host, "cpu")
        self.random = entry.forward_input is not None and draws(lambda: self.call(copy.deepcopy(self.host), "cpu"))

    def module(self, device: str) -> nn.Module:
        return copy.deepcopy(self.host).to(device)

    def inputs(self, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the database's inputs, with their strides."""
        placed = Placement(device)((self.entry.forward_input.args, self.entry.forward_input.kwargs))
        return placed[0], placed[1]

    def call(self, module: nn.Module, device: str) -> Any:
        args, kwargs = self.inputs(device)
        return module(*args, **kwargs)

    def run_as(self, memory_format: torch.memory_format, dim: int, device: str) -> Any:
        """Outputs and gradients with the module, and its inputs of ``dim`` dimensions, in ``memory_format``."""

        def convert(value: torch.Tensor) -> torch.Tensor:
            if value.dim() != dim:
                return value
            return value.detach().contiguous(memory_format=memory_format).requires_grad_(value.requires_grad)

        module = self.module(device).to(memory_format=memory_format)
        args, kwargs = tree_map_only(torch.Tensor, convert, self.inputs(device))
        return run_backward(self, module, args, kwargs, device)


def cases(info: ModuleInfo, dtype: torch.dtype, training: bool, requires_grad: bool = False, forward: bool = True) -> Iterator[Case]:
    """The entries, drawn on the CPU; ``forward``: only those that call the module."""
    with seeded("cpu"):
        entries = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training)
    for entry in entries:
        if entry.forward_input is not None or not forward:
            yield Case(info, entry, dtype, training)


def differentiable(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def run_backward(case: Case, module: nn.Module, args: Any, kwargs: Any, device: str) -> tuple[Any, list[torch.Tensor | None]]:
    """The outputs, and the gradients of inputs and parameters for cotangents that do not depend on the device."""
    with seeded(device):
        outputs = module(*args, **kwargs)
    targets = differentiable(outputs)
    leaves = differentiable((args, kwargs)) + [p for p in module.parameters() if p.requires_grad]
    if not targets or not leaves:
        return outputs, []
    return outputs, list(torch.autograd.grad(targets, leaves, cotangents(targets), allow_unused=True))


def noncontiguous(value: torch.Tensor) -> torch.Tensor:
    """The same values with a stride of two in the last dimension; a scalar stays as it is."""
    if value.dim() == 0:
        return value
    spread = torch.stack([value.detach(), value.detach()], dim=-1)[..., 0]
    return spread.requires_grad_(value.requires_grad)


class TestModule(TestCase):
    @modules(module_db)
    def test_forward(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """Equal to the CPU, and to the database's reference function."""
        for case in cases(module_info, dtype, training):
            with seeded("cpu"):
                expected = case.call(copy.deepcopy(case.host), "cpu")
            for _ in range(2):  # a miss of the cache, then a hit
                module = case.module(device)
                with seeded(device):
                    actual = case.call(module, device)
                assert_matches(self, actual, expected, device, values=not case.random)
            if case.entry.reference_fn is not None and not case.random:
                args, kwargs = case.inputs("cpu")  # the references hold tensors of the CPU
                self.assertEqual(actual, case.entry.reference_fn(case.module("cpu"), *args, **kwargs), exact_device=False)

    @modules(module_db, allowed_dtypes=(torch.float32, torch.bfloat16))
    def test_cpu_gpu_parity(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """Outputs, gradients, and the buffers that a forward pass changes."""
        for case in cases(module_info, dtype, training, requires_grad=True):
            host, ours = case.module("cpu"), case.module(device)
            expected = run_backward(case, host, *case.inputs("cpu"), "cpu")
            actual = run_backward(case, ours, *case.inputs(device), device)
            assert_matches(self, actual, expected, device, values=not case.random)
            assert_matches(self, dict(ours.named_buffers()), dict(host.named_buffers()), device, values=not case.random)

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_non_contiguous_tensors(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """Strided inputs give what contiguous ones give."""
        for case in cases(module_info, dtype, training, requires_grad=True):
            if case.random:
                continue
            results = []
            for change in (lambda value: value, noncontiguous):
                args, kwargs = tree_map_only(torch.Tensor, change, case.inputs(device))
                results.append(run_backward(case, case.module(device), args, kwargs, device))
            self.assertEqual(results[1], results[0])

    @modules(module_db, allowed_dtypes=[torch.double])
    def test_grad(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        self.check_derivatives(gradcheck, device, dtype, module_info, training)

    @modules([info for info in module_db if info.supports_gradgrad], allowed_dtypes=[torch.double])
    def test_gradgrad(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        self.check_derivatives(gradgradcheck, device, dtype, module_info, training, GRADGRAD_ELEMENTS)

    def check_derivatives(
        self, check: Callable[..., bool], device: str, dtype: torch.dtype, info: ModuleInfo, training: bool, limit: int | None = None
    ) -> None:
        """Analytic against numeric derivatives, with respect to inputs and parameters."""
        for case in cases(info, dtype, training, requires_grad=True):
            self.check_case(check, case, device, limit)

    def check_case(self, check: Callable[..., bool], case: Case, device: str, limit: int | None) -> None:
        module, inputs = case.module(device), case.inputs(device)
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        leaves = differentiable(inputs) + [p for p in module.parameters() if p.requires_grad]
        if not leaves or (limit is not None and sum(leaf.numel() for leaf in leaves) > limit):
            return
        first = len(leaves) - len(names)

        def function(*values: torch.Tensor) -> Any:
            free = iter(values[:first])
            args, kwargs = tree_map_only(torch.Tensor, lambda old: next(free) if old.requires_grad else old, inputs)
            # Fresh buffers at each call: running averages must not drift between the evaluations.
            state = {name: buffer.clone() for name, buffer in module.named_buffers()}
            with seeded(device):
                outputs = torch.func.functional_call(module, {**state, **dict(zip(names, values[first:], strict=True))}, args, kwargs)
            return tuple(differentiable(outputs))

        if function(*leaves):
            self.assertTrue(check(function, tuple(leaves), check_batched_grad=False, nondet_tol=case.info.gradcheck_nondet_tol))

    @modules(module_db, allowed_dtypes=[torch.float32])
    def test_check_inplace(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """``inplace=True`` writes into its input, and gives what the other form gives."""
        for case in cases(module_info, dtype, training, requires_grad=True):
            if not hasattr(case.host, "inplace"):
                continue
            module, in_place = case.module(device), case.module(device)
            vars(in_place)["inplace"] = True
            args, kwargs = case.inputs(device)
            expected = run_backward(case, module, args, kwargs, device)
            args, kwargs = case.inputs(device)
            copies = tree_map_only(torch.Tensor, lambda value: value.clone(), args)
            with seeded(device):
                out = in_place(*copies, **kwargs)
            if training or not isinstance(module, nn.modules.dropout._DropoutNd):
                self.assertEqual(out.data_ptr(), copies[0].data_ptr())
            self.assertEqual(out, expected[0])
            leaves = differentiable((args, kwargs)) + [p for p in in_place.parameters() if p.requires_grad]
            self.assertEqual(list(torch.autograd.grad([out], leaves, cotangents([out]), allow_unused=True)), expected[1])

    @modules(module_db, allowed_dtypes=[torch.float32])
    def test_channels_last(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """Modules and inputs in ``channels_last``: the values and the strides of the CPU."""
        for case in cases(module_info, dtype, training, requires_grad=True):
            tensors = [leaf for leaf in tree_leaves(case.inputs("cpu")) if isinstance(leaf, torch.Tensor)]
            for dim, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
                if not any(tensor.dim() == dim for tensor in tensors):
                    continue

                try:
                    expected = case.run_as(memory_format, dim, "cpu")
                except RuntimeError:  # a format that the module's weights cannot take
                    continue
                assert_matches(self, case.run_as(memory_format, dim, device), expected, device, values=not case.random)

    @modules(module_db, allowed_dtypes=(torch.float64,), train_eval_mode=TrainEvalMode.train_only)
    def test_factory_kwargs(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """``device=`` and ``dtype=`` of the constructor reach every parameter and floating-point buffer; so does the default device."""
        for case in cases(module_info, dtype, training, forward=False):
            args = case.entry.constructor_input.args
            kwargs = {name: value for name, value in case.entry.constructor_input.kwargs.items() if name not in ("device", "dtype")}
            given = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
            with torch.device(device):
                modules_made = [module_info.module_cls(*args, **kwargs)]
            if any(id(buffer) in given for buffer in modules_made[0].buffers()):
                continue  # it stays where it was given, whatever the device
            modules_made[0].to(dtype)
            has_state = any(True for _ in case.host.parameters()) or any(True for _ in case.host.buffers())
            if has_state:
                try:
                    module_info.module_cls(*args, **kwargs, device="cpu", dtype=dtype)
                except TypeError:  # its constructor knows no such arguments
                    pass
                else:
                    modules_made.append(module_info.module_cls(*args, **kwargs, device=device, dtype=dtype))
            for module in modules_made:
                for tensor in (*module.parameters(), *module.buffers()):
                    self.assertEqual(tensor.device.type, torch.device(device).type)
                    if tensor.is_floating_point() and not isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                        self.assertEqual(tensor.dtype, dtype)

    @modules(module_db, allowed_dtypes=[torch.float32], train_eval_mode=TrainEvalMode.train_only)
    def test_multiple_device_transfer(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """CPU to device and back, in a row; ``to_empty``; a parameter stays the same object."""
        for case in cases(module_info, dtype, training, forward=False):
            module = copy.deepcopy(case.host)
            state = {name: value.clone() for name, value in module.state_dict().items()}
            identities = [id(p) for p in module.parameters()]
            for where in (device, "cpu", device):
                module.to(where)
                self.assertEqual({value.device.type for value in module.state_dict().values()} <= {torch.device(where).type}, True)
                assert_matches(self, dict(module.state_dict()), state, where)
            self.assertEqual(identities, [id(p) for p in module.parameters()])
            empty = copy.deepcopy(case.host).to("meta").to_empty(device=device)
            assert_matches(self, dict(empty.state_dict()), state, device, values=False)

    @modules(module_db, allowed_dtypes=[torch.float32], train_eval_mode=TrainEvalMode.train_only)
    def test_save_load(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """``state_dict`` through a file, into a module on the device and into one on the CPU."""
        for case in cases(module_info, dtype, training, forward=False):
            source = case.module(device)
            for place, where in ((None, device), ("cpu", "cpu")):
                file = BytesIO()
                torch.save(source.state_dict(), file)
                file.seek(0)
                target = copy.deepcopy(case.host).to(where)
                with torch.no_grad():
                    for p in target.parameters():
                        p.zero_()
                target.load_state_dict(torch.load(file, map_location=place, weights_only=True))
                assert_matches(self, dict(target.state_dict()), dict(case.host.state_dict()), where)

    @modules(module_db, allowed_dtypes=[torch.float32])
    def test_pickle(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """Modules through ``torch.save``, ``pickle`` and ``deepcopy`` compute the same."""
        for case in cases(module_info, dtype, training):
            with torch.no_grad():
                module = case.module(device)
                with seeded(device):
                    expected = case.call(copy.deepcopy(module), device)
                file = BytesIO()
                torch.save(module, file)
                file.seek(0)
                for twin in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
                    with seeded(device):
                        self.assertEqual(case.call(twin, device), expected)

    @modules(module_db, allowed_dtypes=[torch.float32], train_eval_mode=TrainEvalMode.train_only)
    def test_repr(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        for case in cases(module_info, dtype, training, forward=False):
            self.assertEqual(repr(case.module(device)), repr(case.host))
            for parameter in case.module(device).parameters():
                self.assertIsInstance(repr(parameter), str)

    @modules([info for info in module_db if info.is_lazy], allowed_dtypes=[torch.float32])
    def test_lazy(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        """A lazy module takes its sizes and its device from the first input."""
        for case in cases(module_info, dtype, training):
            construct = case.entry.constructor_input
            module = module_info.module_cls(*construct.args, **construct.kwargs, device=device)
            output = case.call(module.train(training), device)
            self.assertEqual(output.device.type, torch.device(device).type)
            assert_matches(self, dict(module.state_dict()), dict(case.host.state_dict()), device, values=False)

    @modules([info for info in module_db if info.module_error_inputs_func is not None], allowed_dtypes=[torch.float32])
    def test_errors(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        errors = module_info.module_error_inputs_func(module_info, device=device, dtype=dtype, requires_grad=False, training=training)
        for error in errors:
            entry = error.module_error_input
            construct = entry.constructor_input
            with self.assertRaisesRegex(error.error_type, error.error_regex):
                module = module_info.module_cls(*construct.args, **construct.kwargs)
                if error.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
                    continue
                module.to(device, dtype)(*entry.forward_input.args, **entry.forward_input.kwargs)


CLASSES = [TestModule]

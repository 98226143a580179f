"""Compares one op and dtype as lowered and run by XLA:CPU with PyTorch on the CPU, over a few of its samples."""

import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.opinfo.check import OPS, Result, is_random, tolerances
from tests.opinfo.expectations import VALUES_ARE_UNDEFINED
from tests.opinfo.forms import SEED, Call
from torch_neuronx.lowering import NotLowered
from torch_neuronx.lowering.dtypes import rule
from torch_neuronx.lowering.emit import trace_function
from torch_neuronx.lowering.execute import CompiledModule
from torch_neuronx.lowering.hlo import to_hlo

# Which of equal elements an index names is not defined, and PyTorch's vectorised kernels name another than its scalar ones.
TIES = frozenset("argsort kthvalue median mode nanmedian sort topk".split())
SAMPLES = 3  # of each variant, spread over those that PyTorch has


def some(samples: list[SampleInput], count: int) -> list[SampleInput]:
    """``count`` of them, from the first to the last."""
    if len(samples) <= count:
        return samples
    return [samples[index * (len(samples) - 1) // (count - 1)] for index in range(count)]


def run_lowered(fn: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """The leaves of what ``fn`` returns: tensors from XLA:CPU, the rest from the trace. Complex arguments: as :func:`run_on_pairs`."""
    if not any(tensor.is_complex() for tensor in tensors):
        module, returned = trace_function(fn, tensors)
        results = iter(CompiledModule(to_hlo(module)).run(tensors))
        return [next(results) if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(returned)]
    return run_on_pairs(fn, tensors)


def run_on_pairs(fn: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """:func:`run_lowered` as a chip has it: no complex number in the module."""
    module, returned = trace_function(fn, tensors, real=True)
    assert "complex<" not in str(module)
    given = [torch.view_as_real(tensor.resolve_conj().resolve_neg()) if tensor.is_complex() else tensor for tensor in tensors]
    results = iter(CompiledModule(to_hlo(module)).run([tensor.detach() for tensor in given]))

    def result(leaf: torch.Tensor) -> torch.Tensor:
        found = next(results)
        return torch.view_as_complex(found.clone(memory_format=torch.contiguous_format)) if leaf.is_complex() else found

    return [result(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(returned)]


def compare(op: OpInfo, actual: list[Any], expected: list[Any], values: bool) -> None:
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(e, torch.Tensor):
            assert type(a) is type(e) and (a == e or not values), f"result {index}: {a!r}, expected {e!r}"
            continue
        assert isinstance(a, torch.Tensor), f"result {index}: {a!r}, expected a tensor"
        assert (a.dtype, a.shape) == (e.dtype, e.shape), f"result {index}: {a.dtype}{list(a.shape)}, expected {e.dtype}{list(e.shape)}"
        if values:
            rtol, atol = tolerances(op, e.dtype)
            torch.testing.assert_close(a, e.detach().resolve_conj().resolve_neg(), rtol=rtol, atol=atol, equal_nan=True)


def _picks(x: torch.Tensor, index: torch.Tensor) -> Iterator[torch.Tensor]:
    """What ``index`` names in ``x`` along each dimension where it fits, its own dimension kept or not."""
    for dim in range(x.dim()):
        for whole in (index, index.unsqueeze(dim)):
            if whole.dim() == x.dim() and all(a == b for d, (a, b) in enumerate(zip(whole.shape, x.shape, strict=True)) if d != dim):
                yield x.gather(dim, whole)


def same_but_for_ties(op: OpInfo, x: Any, actual: list[Any], expected: list[Any]) -> bool:
    """Values agree, and the indices (the last result) name equal elements."""
    if op.name not in TIES or len(expected) > 2 or not isinstance(x, torch.Tensor) or actual[-1].shape != expected[-1].shape:
        return False
    compare(op, actual[:-1], expected[:-1], values=True)
    return any(torch.equal(a, e) for a, e in zip(_picks(x, actual[-1]), _picks(x, expected[-1]), strict=True))


def _as_function(op: OpInfo, sample: SampleInput) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A function of the sample's strided tensors, and these."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]

    def call(*given: torch.Tensor) -> Any:
        filled = list(leaves)
        for index, tensor in zip(places, given, strict=True):
            filled[index] = tensor
        value, args, kwargs = tree_unflatten(filled, spec)
        return op(value, *args, **kwargs)

    return call, [leaves[index] for index in places]


def check_sample(op: OpInfo, sample: SampleInput, gradients: bool, result: Result) -> None:
    """Forward, and where asked the gradients of all inputs, in one module."""
    function, given_tensors = _as_function(op, sample)
    tensors = [tensor.detach().clone().requires_grad_(tensor.requires_grad and gradients) for tensor in given_tensors]

    def call(*given: torch.Tensor) -> Any:
        outcome = function(*given)
        wanted = [tensor for tensor in given if tensor.requires_grad]
        outputs = [out for out in tree_leaves(outcome) if isinstance(out, torch.Tensor) and out.requires_grad] if wanted else []
        if not outputs:
            return outcome, []
        return outcome, list(torch.autograd.grad(outputs, wanted, [torch.ones_like(out) for out in outputs], allow_unused=True))

    torch.manual_seed(SEED)
    try:
        expected = tree_leaves(call(*tensors))
    except Exception:
        result.excluded += 1
        return
    result.gradients += bool(gradients)
    torch.manual_seed(SEED)
    actual = run_lowered(call, [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors])
    values = op.name not in VALUES_ARE_UNDEFINED
    try:
        compare(op, actual, expected, values)
    except AssertionError:
        if same_but_for_ties(op, sample.input, actual, expected):
            return
        if values and is_random(Call(op, sample).functional):
            compare(op, actual, expected, values=False)
            return
        raise


def chip_lacks(module: str) -> list[str]:
    """Lines of a StableHLO module with types that no chip has: float64 and complex numbers."""
    return [line.strip() for line in module.splitlines() if re.search(r"\bf64\b|xf64|complex<", line)]


def check_chip(name: str, dtype_name: str) -> Result:
    """Whether the first sample's module for trn2 keeps to the chip's dtypes where the tensors given and returned do."""
    warnings.simplefilter("ignore")
    op, dtype = OPS[name], getattr(torch, dtype_name)
    result, start = Result(name, dtype_name, "excluded"), time.monotonic()
    sample = next(iter(op.sample_inputs("cpu", dtype)), None) if op.supports_dtype(dtype, "cpu") else None
    if sample is None:
        return result
    call, tensors = _as_function(op, sample)
    try:
        module, returned = trace_function(call, tensors, "trn2")
    except Exception:  # what does not lower is the other check's business
        return result
    given = [*tensors, *(leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor))]
    if not any(rule(tensor.dtype, "trn2").verdict == "refused" or tensor.dtype is torch.float64 for tensor in given):
        result.failures = chip_lacks(str(module))[:4]
        result.status = "fail" if result.failures else "pass"
        result.samples, result.failed = 1, bool(result.failures)
    result.seconds = time.monotonic() - start
    return result


def check_variant(name: str, dtype_name: str) -> Result:
    """Checks ``name`` (OpInfo.full_name) in ``dtype_name``: forward over SAMPLES samples, gradients of the first."""
    warnings.simplefilter("ignore")
    op, dtype = OPS[name], getattr(torch, dtype_name)
    result, start = Result(name, dtype_name), time.monotonic()
    if not op.supports_dtype(dtype, "cpu"):
        result.status = "excluded"
        return result
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu") and dtype is not torch.bfloat16
    torch.manual_seed(SEED)
    samples = some(list(op.sample_inputs("cpu", dtype, requires_grad=gradients)), SAMPLES)
    status = "fail"
    for index, sample in enumerate(samples):
        result.samples += 1
        try:
            check_sample(op, sample, gradients and index == 0, result)
        except NotLowered as error:
            result.failed += 1
            status = "not lowered"
            result.failures = [str(error)]
            break
        except Exception as error:
            result.fail(error)
    result.status = status if result.failed else "excluded" if result.excluded == result.samples else "pass"
    result.seconds = time.monotonic() - start
    return result

"""NKI kernels in what the stand-in compiled: their custom calls become calls of the simulator.

The vendor's compiler reads a config that the vendor's tracer has made. The stand-in reads the one that this project's own implementation
makes (torch_neuronx/lowering/ops/kernels.py), and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CUSTOM_CALL = "AwsNeuronCustomNativeKernel"
_CALLBACK = "xla_ffi_python_cpu_callback"  # how JAX calls back to Python from the CPU


def refusal(config: str, target: str, lnc: int) -> str | None:
    """Why the stand-in's compiler does not take a kernel; None when it does."""
    try:
        fields = json.loads(config)
        kernel, made_for, cores = fields["kernel"], fields["target"], fields["lnc"]
    except (ValueError, KeyError, TypeError):
        return "the backend_config is not the stand-in's"
    if made_for != target:
        return f"kernel '{kernel}' was traced for {made_for}, not for {target}"
    if cores > lnc:
        return f"kernel '{kernel}' needs {cores} physical cores, --lnc is {lnc}"
    return None


def configs(module: Any) -> list[tuple[Any, str]]:
    """The custom calls of kernels in a StableHLO module, each with its config."""
    from jaxlib.mlir import ir

    found: list[tuple[Any, str]] = []

    def collect(op: Any) -> Any:
        if op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == CUSTOM_CALL:
            found.append((op, ir.StringAttr(op.attributes["backend_config"]).value))
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    return found


def call_back(module: Any) -> list[Callable[..., Any]]:
    """Makes calls of Python of the kernels in a module; gives the functions, in the order of the indices that the module names."""
    from jaxlib.mlir import ir

    functions: list[Callable[..., Any]] = []
    for op, config in configs(module):
        index = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(64), len(functions))
        op.attributes["call_target_name"] = ir.StringAttr.get(_CALLBACK)
        op.attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4)
        op.attributes["backend_config"] = ir.DictAttr.get({"index": index})
        functions.append(replay(config))
    return functions


def replay(config: str) -> Callable[..., Any]:
    """A function of NumPy arrays that runs a kernel."""
    from torch_neuronx.lowering.ops.kernels import traced_from
    from torch_neuronx.nki.arrays import public_dtype
    from torch_neuronx.nki.kernel import Compiled
    from torch_neuronx.nki.torch_op import execute, typed

    traced = traced_from(config)
    compiled = Compiled(traced)
    kinds = [public_dtype(buffer.dtype) for buffer in traced.output_buffers]

    def run(*inputs: Any) -> Sequence[np.ndarray]:
        results = typed(traced, execute(compiled, [np.array(one) for one in inputs]))
        return tuple(_numpy(result, kind) for result, kind in zip(results, kinds, strict=True))

    return run


def _numpy(tensor: Any, dtype: Any) -> np.ndarray:
    import ml_dtypes
    import torch

    if dtype not in (torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn):
        array: np.ndarray = tensor.numpy()
        return array
    raw = tensor.contiguous().view(torch.int16 if dtype == torch.bfloat16 else torch.uint8).numpy()
    return raw.view(getattr(ml_dtypes, str(dtype).removeprefix("torch.")))

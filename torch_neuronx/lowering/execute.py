"""Runs HLO modules on XLA:CPU: how the lowering is checked, and what TORCH_NEURONX_EXECUTOR=xla runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_neuronx.lowering.dtypes import to_torch
from torch_neuronx.lowering.emit import jax_context
from torch_neuronx.lowering.tracer import to_array


class CompiledModule:
    """A module compiled for the CPU. ``hlo``: the serialized HloModuleProto; ``replicas``: how many run it together, one a CPU device."""

    def __init__(self, hlo: bytes, replicas: int = 1) -> None:
        import jax
        from jax.extend.backend import get_backend
        from jaxlib import _jax, xla_client

        options = xla_client.CompileOptions()
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = replicas, 1
        for flag, value in (("xla_backend_optimization_level", 0), ("xla_llvm_disable_expensive_passes", True)):
            setattr(build.debug_options, flag, value)
        self.client = get_backend("cpu") if replicas == 1 else xla_client.make_cpu_client(num_devices=replicas)
        self.devices = tuple(self.client.local_devices()[:replicas])
        with jax_context():
            module = _without_aliases(_jax.mlir.hlo_to_stablehlo(hlo))
            self.executable = self.client.compile_and_load(module, xla_client.DeviceList(self.devices), options)
        self._put = jax.device_put

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results of the module, as CPU tensors."""
        (results,) = self.run_replicas([tensors])
        return results

    def run_replicas(self, tensors: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Results on each replica, whose arguments are ``tensors[replica]``."""
        with jax_context():
            arguments = [self._argument(parts) for parts in zip(*tensors, strict=True)]
            results = self.executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
            return [[to_tensor(parts[replica]) for parts in results] for replica in range(len(self.devices))]

    def _argument(self, parts: Sequence[torch.Tensor]) -> Any:
        """One parameter: each replica's own array under the name of one that JAX takes for the same everywhere."""
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        arrays = [self._put(to_array(part), device) for part, device in zip(parts, self.devices, strict=True)]
        if len(arrays) == 1:
            return arrays[0]
        everywhere = NamedSharding(Mesh(np.array(self.devices), ("replica",)), PartitionSpec())
        return jax.make_array_from_single_device_arrays(arrays[0].shape, everywhere, arrays)


def _without_aliases(module: Any) -> Any:
    """Here results are copies: JAX owns the parameters."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        parsed = ir.Module.parse(module)
        if "mhlo.input_output_alias" in parsed.operation.attributes:
            del parsed.operation.attributes["mhlo.input_output_alias"]
        return parsed


def to_tensor(array: Any) -> torch.Tensor:
    """A JAX array as a CPU tensor (a copy)."""
    import numpy as np

    value = np.array(array)
    dtype = to_torch(value.dtype)
    if value.dtype.kind == "V" or dtype is torch.bfloat16:
        bits = {1: np.uint8, 2: np.int16}[value.dtype.itemsize]
        return torch.from_numpy(value.view(bits).copy()).view(dtype)
    return torch.from_numpy(value)

"""The process behind one core of the stand-in runtime: executes the HLO of NEFFs with XLA on the CPU.

Started by the stand-in ``libnrt.so.1`` as ``executor.py <socket> <pid of the runtime's process> <core>``. It answers one line per line:
``load ID PLACE``, ``execute ID nan|- PLACE... -> PLACE...``, ``unload ID``, ``forget FD``; a PLACE is ``fd:offset:bytes`` of the runtime's
process.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import jax
import ml_dtypes
import numpy as np
from jax._src.interpreters.mlir import make_ir_context
from jax._src.lib import xla_client
from jax.extend import backend as jax_backend
from jaxlib.mlir import ir

from tests.standin_sdk.kernels import call_back
from torch_neuronx.compiler.neff import unpack

jax.config.update("jax_enable_x64", True)

# HLO's name of a dtype: (NumPy or ml_dtypes name, nrt_dtype_t). What the runtime has no value for travels as bytes of its size.
DTYPES = {
    "pred": ("bool", 0x3),
    "s8": ("int8", 0x2),
    "u8": ("uint8", 0x3),
    "s16": ("int16", 0x4),
    "u16": ("uint16", 0x5),
    "s32": ("int32", 0x8),
    "u32": ("uint32", 0x9),
    "s64": ("int64", 0xC),
    "u64": ("uint64", 0x1),
    "f16": ("float16", 0x7),
    "bf16": ("bfloat16", 0x6),
    "f32": ("float32", 0xA),
    "f64": ("float64", 0x0),
    "c64": ("complex64", 0x0),
    "c128": ("complex128", 0x0),
    "f8e3m4": ("float8_e3m4", 0xD),
    "f8e4m3": ("float8_e4m3", 0xE),
    "f8e4m3fn": ("float8_e4m3fn", 0xE),
    "f8e5m2": ("float8_e5m2", 0xF),
}


@dataclass(frozen=True)
class Variable:
    """An input or output of a NEFF."""

    name: str
    dtype: str
    shape: list[int]

    @property
    def numpy_dtype(self) -> np.dtype:
        name = DTYPES[self.dtype][0]
        return np.dtype(getattr(ml_dtypes, name, None) or name)

    def describe(self) -> str:
        size = int(np.prod(self.shape, dtype=np.int64)) * self.numpy_dtype.itemsize
        return " ".join(map(str, [self.name, DTYPES[self.dtype][1], size, len(self.shape), *self.shape]))


class Model:
    def __init__(self, neff: bytes) -> None:
        files = unpack(neff)
        table = json.loads(files["tensors.json"])
        self.inputs, self.outputs = ([Variable(**row) for row in table[kind]] for kind in ("inputs", "outputs"))
        backend = jax_backend.get_backend("cpu")
        self.device = backend.local_devices()[0]
        with make_ir_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(xla_client._xla.mlir.hlo_to_stablehlo(files["hlo.pb"]))
            # Results are copied to where they belong, which is what an alias asks for.
            if "mhlo.input_output_alias" in module.operation.attributes:
                del module.operation.attributes["mhlo.input_output_alias"]
            kernels = call_back(module)
            devices, options = xla_client.DeviceList((self.device,)), xla_client.CompileOptions()
            self.executable = backend.compile_and_load(module, devices, options, kernels)

    def describe(self) -> str:
        lists = [self.inputs, self.outputs]
        return " ".join(" ".join([str(len(variables)), *(variable.describe() for variable in variables)]) for variables in lists)

    def run(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> bool:
        """Runs and writes the outputs; True when one holds NaN."""
        # The device may not alias what the runtime's process may write: the arrays are copied.
        arrays = [jax.device_put(array.copy(), self.device) for array in inputs]
        results = self.executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
        nan = False
        for place, (result,) in zip(outputs, results, strict=True):
            value = np.asarray(result)
            place[...] = value
            if value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat", "float8")):
                nan = nan or bool(np.isnan(value.astype(np.float32)).any())
        return nan


class Server:
    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.models: dict[str, Model] = {}
        self.mappings: dict[str, mmap.mmap] = {}

    def memory(self, place: str) -> np.ndarray:
        fd, offset, size = place.split(":")
        if fd not in self.mappings:
            with open(f"/proc/{self.pid}/fd/{fd}", "r+b") as file:
                self.mappings[fd] = mmap.mmap(file.fileno(), 0)
        return np.frombuffer(self.mappings[fd], np.uint8, int(size), int(offset))

    def array(self, variable: Variable, place: str) -> np.ndarray:
        raw = self.memory(place)
        if raw.ctypes.data % variable.numpy_dtype.alignment:
            raise ValueError(f"tensor {variable.name} is not aligned to its dtype")
        return raw.view(variable.numpy_dtype).reshape(variable.shape)

    def load(self, model: str, place: str) -> str:
        self.mappings.pop(place.split(":")[0], None)
        self.models[model] = Model(self.memory(place).tobytes())
        self.forget(place.split(":")[0])
        return " " + self.models[model].describe()

    def unload(self, model: str) -> str:
        del self.models[model]
        return ""

    def forget(self, fd: str) -> str:
        self.mappings.pop(fd, None)
        return ""

    def execute(self, model: str, nan: str, *places: str) -> str:
        arrow = places.index("->")
        loaded = self.models[model]
        inputs = [self.array(*pair) for pair in zip(loaded.inputs, places[:arrow], strict=True)]
        outputs = [self.array(*pair) for pair in zip(loaded.outputs, places[arrow + 1 :], strict=True)]
        found = loaded.run(inputs, outputs)
        return " nan" if nan == "nan" and found else ""

    def serve(self) -> None:
        for line in self.connection.makefile("r"):
            command, *words = line.split()
            try:
                answer = "ok" + getattr(self, command)(*words)
            except Exception as error:  # told to the runtime, which makes a status of it
                answer = f"{type(error).__name__}: {error}".replace("\n", " ")
            self.connection.sendall(f"{answer}\n".encode())


def main(arguments: list[str]) -> Any:
    Server(socket.socket(fileno=int(arguments[0])), int(arguments[1])).serve()


if __name__ == "__main__":
    main(sys.argv[1:])

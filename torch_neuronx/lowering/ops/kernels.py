"""NKI kernels: one custom call of the chip's compiler each.

The vendor's tracer makes the ``backend_config`` that a chip needs; it is not public. Here it is a JSON object of this project's own, which
holds the traced kernel: it shows what a graph becomes, and a stand-in for the compiler can run it.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import jax

from torch_neuronx.lowering.dtypes import to_jax
from torch_neuronx.lowering.table import CallInfo, NotLowered, lowers

CUSTOM_CALL = "AwsNeuronCustomNativeKernel"
FORMAT = "torchneuron-trace"


@lowers("nki::kernel", call=True)
def kernel(call: CallInfo, name: str, inputs: list[Any], sizes: list[int]) -> list[Any]:
    from torch_neuronx.nki.kernel import specs_of
    from torch_neuronx.nki.target import target
    from torch_neuronx.nki.torch_op import site_named

    if call.target == "portable":
        raise NotLowered("nki::kernel", "a portable module holds no NKI kernels; lower for trn2 or trn3")
    site = site_named(name)
    traced = site.kernel.compiled(specs_of(call.args[1]), site.structure, target(call.target)).traced
    results = [jax.ShapeDtypeStruct(out.shape, to_jax(out.dtype)) for out in call.out]
    made = jax.ffi.ffi_call(CUSTOM_CALL, results, custom_call_api_version=1, legacy_backend_config=config_of(traced))(*inputs)
    return list(made)


@lowers("nki::kernel_into", call=True)
def kernel_into(call: CallInfo, name: str, *_: Any) -> Any:
    raise NotLowered("nki::kernel_into", f"the kernel {name.rpartition('#')[0]} writes to its arguments; return a tensor instead")


def config_of(traced: Any) -> str:
    """The ``backend_config``: name, number of physical cores, and the trace."""
    packed = base64.b64encode(zlib.compress(pickle.dumps(traced))).decode()
    return json.dumps({"format": FORMAT, "kernel": traced.name, "target": traced.target.name, "lnc": traced.lnc, "trace": packed})


def traced_from(config: str) -> Any:
    """The TracedKernel in a ``backend_config`` that this module made.

    Raises:
        ValueError: it is not of this format.
    """
    fields = json.loads(config)
    if fields.get("format") != FORMAT:
        raise ValueError(f"the backend_config of {CUSTOM_CALL} is not in the format {FORMAT}")
    return pickle.loads(zlib.decompress(base64.b64decode(fields["trace"])))

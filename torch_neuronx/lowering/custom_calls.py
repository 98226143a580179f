"""Operators that neuronx-cc knows as a whole: custom calls in place of their decomposition, when the target asks for them.

Names, operands and ``backend_config`` as in the compiler's documentation and AWS's open-source libraries. A portable module has none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torch_neuronx.lowering.table import CallInfo


def wanted(target: str) -> bool:
    """Whether modules for ``target`` use custom calls."""
    return target != "portable"


def _call(name: str, result: Any, *operands: Any, config: str = "") -> Any:
    """A custom call. ``backend_config`` is a string, as API version 1 has it."""
    return jax.ffi.ffi_call(name, result, custom_call_api_version=1, legacy_backend_config=config)(*operands)


def _same(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def softmax_call(call: CallInfo, x: Any, dim: int) -> Any:
    """AwsNeuronSoftmax over ``dim`` of a float32 or bfloat16 ``x``; None when the target does not want it."""
    if not wanted(call.target) or x.dtype not in (jnp.float32, jnp.bfloat16):
        return None
    return _call("AwsNeuronSoftmax", _same(x), x, config=str(dim))


def silu_call(target: str, x: Any) -> Any:
    """AwsNeuronSilu, or None."""
    return _call("AwsNeuronSilu", _same(x), x) if wanted(target) else None


def gelu_call(target: str, x: Any, approximate: str) -> Any:
    """AwsNeuronGelu or AwsNeuronGeluApprxTanh, or None."""
    return _call("AwsNeuronGelu" if approximate == "none" else "AwsNeuronGeluApprxTanh", _same(x), x) if wanted(target) else None

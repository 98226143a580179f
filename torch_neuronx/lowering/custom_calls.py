"""Operators that neuronx-cc knows as a whole: custom calls in place of their decomposition, when the target asks for them.

Names, operands and ``backend_config`` as in the compiler's documentation and AWS's open-source libraries. A portable module has none, and
each function here gives None where there is nothing to replace: for the portable target and for dtypes that the calls do not take.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.table import CallInfo

_TOP_K_STEP = 8  # the call's last dimension is a multiple of it


def _fits(call: CallInfo, x: Any) -> bool:
    return call.target != "portable" and x.dtype in (jnp.float32, jnp.bfloat16) and x.ndim > 0 and x.size > 0


def _call(name: str, result: Any, *operands: Any, config: str = "") -> Any:
    """A custom call. ``backend_config`` is a string, as API version 1 has it."""
    return jax.ffi.ffi_call(name, result, custom_call_api_version=1, legacy_backend_config=config)(*operands)


def _like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def elementwise(call: CallInfo, name: str, x: Any) -> Any:
    """AwsNeuronSilu, AwsNeuronGelu or AwsNeuronGeluApprxTanh of ``x``."""
    return _call(name, _like(x), x) if _fits(call, x) else None


def softmax(call: CallInfo, x: Any, dim: int) -> Any:
    """AwsNeuronSoftmax over ``dim``."""
    return _call("AwsNeuronSoftmax", _like(x), x, config=str(dim)) if _fits(call, x) else None


def rms_norm(call: CallInfo, x: Any, weight: Any, eps: float) -> Any:
    """AwsNeuronRmsNorm over the last dimension; ``weight`` has its size and the dtype of ``x``."""
    if not _fits(call, x):
        return None
    return _call("AwsNeuronRmsNorm", _like(x), x, weight, jnp.asarray(eps, x.dtype), config=str(x.ndim - 1))


def arg_extremum(call: CallInfo, x: Any, dim: int, largest: bool) -> Any:
    """AwsNeuronArgMax or AwsNeuronArgMin: uint32 indices along ``dim``, which is gone."""
    if not _fits(call, x):
        return None
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    return _call("AwsNeuronArgMax" if largest else "AwsNeuronArgMin", jax.ShapeDtypeStruct(shape, jnp.uint32), x, config=str(dim))


def top_k(call: CallInfo, x: Any, k: int, dim: int) -> Any:
    """AwsNeuronTopK: the ``k`` largest along ``dim`` in falling order and their uint32 indices. Asks for a multiple of 8 and drops the
    rest; None where there are fewer elements than that."""
    wanted = -(-k // _TOP_K_STEP) * _TOP_K_STEP
    if not _fits(call, x) or not 0 < wanted <= x.shape[dim]:
        return None
    moved = jnp.moveaxis(x, dim, -1)
    shape = (*moved.shape[:-1], wanted)
    results = _call(
        "AwsNeuronTopK", (jax.ShapeDtypeStruct(shape, x.dtype), jax.ShapeDtypeStruct(shape, jnp.uint32)), moved, config=str(wanted)
    )
    return tuple(jnp.moveaxis(lax.slice_in_dim(result, 0, k, axis=-1), -1, dim) for result in results)

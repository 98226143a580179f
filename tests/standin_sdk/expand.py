"""The compiler's custom calls as plain StableHLO, so that XLA:CPU can run what the stand-in compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxlib import _jax

from tests.standin_sdk.kernels import configs


def _softmax(x: Any, config: str) -> Any:
    return jax.nn.softmax(x, axis=int(config))


def _rms_norm(x: Any, weight: Any, eps: Any, config: str) -> Any:
    mean = jnp.mean(x.astype(jnp.float32) ** 2, axis=int(config), keepdims=True)
    return (x * lax.rsqrt(mean + eps.reshape(())).astype(x.dtype)) * weight


def _top_k(x: Any, config: str) -> Any:
    values, indices = lax.top_k(x, int(config))
    return values, indices.astype(jnp.uint32)


EXPANSIONS: dict[str, Callable[..., Any]] = {
    "AwsNeuronSoftmax": _softmax,
    "AwsNeuronRmsNorm": _rms_norm,
    "AwsNeuronErf": lambda x, config: lax.erf(x),
    "AwsNeuronGelu": lambda x, config: jax.nn.gelu(x, approximate=False),
    "AwsNeuronGeluApprxTanh": lambda x, config: jax.nn.gelu(x, approximate=True),
    "AwsNeuronSilu": lambda x, config: jax.nn.silu(x),
    "AwsNeuronArgMax": lambda x, config: jnp.argmax(x, int(config)).astype(jnp.uint32),
    "AwsNeuronArgMin": lambda x, config: jnp.argmin(x, int(config)).astype(jnp.uint32),
    "AwsNeuronTopK": _top_k,
    "AwsNeuronTransferWithStaticRing": lambda x, config: x,
}


def expand(hlo: bytes, refuse_kernel: Callable[[str], None]) -> bytes:
    """``hlo`` with each known custom call replaced by a call of a function that computes it. NKI kernels stay, for the executor;
    ``refuse_kernel`` is shown their configs."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    module_text = _jax.mlir.hlo_to_stablehlo(hlo)
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(module_text)
        calls: list[Any] = []

        def collect(op: Any) -> Any:
            if op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value in EXPANSIONS:
                calls.append(op)
            return ir.WalkResult.ADVANCE

        for _, config in configs(module):
            refuse_kernel(config)
        module.operation.walk(collect)
        for number, op in enumerate(calls):
            _replace(module, op, f"expanded_{number}")
        if not calls:
            return hlo
        computation = _jax.mlir.mlir_module_to_xla_computation(str(module), use_tuple_args=False, return_tuple=True)
        return bytes(computation.as_serialized_hlo_module_proto())


def _replace(module: Any, op: Any, name: str) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    target = ir.StringAttr(op.attributes["call_target_name"]).value
    config = ir.StringAttr(op.attributes["backend_config"]).value if "backend_config" in op.attributes else ""
    shapes = [_shape(value.type) for value in op.operands]
    with jax.enable_x64(True):
        function = EXPANSIONS[target]
        lowered = jax.jit(lambda *xs: function(*xs, config=config)).trace(*shapes).lower(lowering_platforms=("cpu",))
    inner = ir.Module.parse(str(lowered.compiler_ir("stablehlo")))
    renamed = {}
    for part in inner.body.operations:
        old = ir.StringAttr(part.attributes["sym_name"]).value
        renamed[old] = f"{name}_{old}"
    text = str(inner)
    for old, new in renamed.items():
        text = text.replace(f"@{old}(", f"@{new}(")
    for part in ir.Module.parse(text.replace("func.func public", "func.func private")).body.operations:
        module.body.append(part.clone())
    made = next(part for part in module.body.operations if ir.StringAttr(part.attributes["sym_name"]).value == renamed["main"])
    with ir.InsertionPoint(op):
        call = func.CallOp(list(made.type.results), ir.FlatSymbolRefAttr.get(renamed["main"]), list(op.operands))
    if len(call.results) == len(op.results):
        for old, new in zip(op.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        op.operation.erase()
        return
    # One tuple, as HLO's calls give it: its elements are the function's results.
    (whole,) = op.results
    for use in list(whole.uses):
        element = use.owner
        assert element.name == "stablehlo.get_tuple_element", element.name
        index = ir.IntegerAttr(element.attributes["index"]).value
        element.results[0].replace_all_uses_with(call.results[index])
        element.operation.erase()
    op.operation.erase()


_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "i64": "int64", "ui32": "uint32", "f64": "float64"}


def _shape(kind: Any) -> Any:
    from jaxlib.mlir import ir

    ranked = ir.RankedTensorType(kind)
    return jax.ShapeDtypeStruct(tuple(ranked.shape), _TYPES[str(ranked.element_type)])

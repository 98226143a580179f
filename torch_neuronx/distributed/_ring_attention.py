"""Lets ``torch.distributed.tensor.experimental.context_parallel`` run attention on ``neuron``.

PyTorch's ring attention has a table of the attention ops that it knows, by device: those of CUDA. On ``neuron``
``scaled_dot_product_attention`` becomes the flash attention op below; this adds it, with the same ring, to the table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

_aten = torch.ops.aten
_SEQUENCE = 2  # dimension of query, key and value [batch, heads, sequence, features]


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _forward(op: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, DTensor]:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    mesh = arguments[0].device_mesh
    query, key, value = map(_local, arguments[:3])
    dropout = arguments[3] if len(arguments) > 3 else 0.0
    causal = arguments[4] if len(arguments) > 4 else False
    if dropout or options.get("attn_mask") is not None:
        raise NotImplementedError("context_parallel on neuron: attention with dropout or a mask is not supported; use is_causal")

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **rest: Any) -> Any:
        return op(query, key, value, 0.0, rest.pop("is_causal"), **rest)

    output, logsumexp, *_ = _attention._templated_ring_attention(
        mesh.get_group(), _SEQUENCE, attend, query, key, value, is_causal=bool(causal), scale=options.get("scale")
    )
    return tuple(DTensor.from_local(x, mesh, [Shard(_SEQUENCE)], run_check=False) for x in (output, logsumexp))  # type: ignore[return-value]


def _backward(op: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[DTensor, ...]:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    mesh = arguments[0].device_mesh
    grad, query, key, value, output, logsumexp, _, causal = map(_local, arguments[:8])

    def differentiate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **rest: Any) -> Any:
        grad_out, out, logsumexp, is_causal = (rest.pop(name) for name in ("grad_out", "out", "logsumexp", "is_causal"))
        return op(grad_out, query, key, value, out, logsumexp, 0.0, is_causal, **rest)

    gradients = _attention._templated_ring_attention_backward(
        mesh.get_group(),
        _SEQUENCE,
        differentiate,
        grad_out=grad,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        out=output,
        logsumexp=logsumexp,
        is_causal=bool(causal),
        scale=options.get("scale"),
    )
    return tuple(DTensor.from_local(x, mesh, [Shard(_SEQUENCE)], run_check=False) for x in gradients[:3])


def register() -> None:
    """Called once PyTorch's ring attention has been imported."""
    from torch.distributed.tensor.experimental._context_parallel import _attention

    handlers: dict[Any, Any] = _attention.custom_ops
    handlers[_aten._scaled_dot_product_flash_attention_for_cpu.default] = _forward
    handlers[_aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _backward

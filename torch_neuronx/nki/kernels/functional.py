"""PyTorch functions on top of the kernels, with their gradients, and the switch that routes PyTorch's own functions to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from torch_neuronx.nki.kernels.flash_attention import flash_attention
from torch_neuronx.nki.kernels.flash_attention_backward import flash_attention_backward
from torch_neuronx.nki.kernels.norms import rms_norm as rms_norm_kernel

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        flat = [_heads_first(t) for t in (q, k, v)]
        out, lse = flash_attention(*flat, scale=scale, causal=causal)
        ctx.save_for_backward(*flat, out, lse)
        ctx.options = {"scale": scale, "causal": causal}
        ctx.shapes = (q.shape, k.shape, v.shape)
        return out.view(q.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        d_out = _heads_first(gradients[0])
        found = flash_attention_backward(q, k, v, out, d_out, lse, **ctx.options)
        return (*(g.view(shape) for g, shape in zip(found, ctx.shapes, strict=True)), None, None)


def _heads_first(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1, *t.shape[-2:]).contiguous()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return rms_norm_kernel(x.reshape(-1, x.shape[-1]).contiguous(), weight, eps=eps).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # With xn = x r and r = rsqrt(mean(x^2) + eps): dx = r (g - xn mean(g xn)), where g = dy * weight.
        wide, dy = x.float(), gradients[0].float()
        r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.eps)
        normal, g = wide * r, dy * weight.float()
        dx = r * (g - normal * (g * normal).mean(-1, keepdim=True))
        dw = (dy * normal).flatten(0, -2).sum(0)
        return dx.to(x.dtype), dw.to(weight.dtype), None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool = False, scale: float | None = None) -> torch.Tensor:
    """``scaled_dot_product_attention`` by the flash-attention kernels, with gradients.

    Args:
        q: ``[..., heads, queries, D]``, D at most 128; k, v: ``[..., kv_heads, keys, D]``. float32, float16 or bfloat16.
        is_causal: query i sees keys 0 to i.
        scale: of the scores; 1 / sqrt(D) by default.
    """
    return _Attention.apply(q, k, v, 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale), is_causal)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMS norm over the last dimension by the kernel, with gradients (which are PyTorch operations)."""
    return _RmsNorm.apply(x, weight, float(eps))


# --- routing ----------------------------------------------------------------------------------------------------------------------------


def _route_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor | None:
    alike = query.dtype == key.dtype == value.dtype and query.dtype in _FLOATS and key.shape == value.shape
    grouped = query.dim() >= 3 and query.shape[:-3] == key.shape[:-3]
    heads = grouped and (query.shape[-3] == key.shape[-3] or (enable_gqa and query.shape[-3] % key.shape[-3] == 0))
    if attn_mask is not None or dropout_p or not alike or not heads or query.shape[-1] > 128:
        return None
    return attention(query, key, value, is_causal=is_causal, scale=scale)


def _route_rms_norm(
    input: torch.Tensor, normalized_shape: Iterable[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor | None:
    if weight is None or len(list(normalized_shape)) != 1 or input.dtype not in _FLOATS or input.dim() < 2:
        return None
    return rms_norm(input, weight, torch.finfo(input.dtype).eps if eps is None else eps)


_ROUTES: dict[str, tuple[tuple[Callable[..., Any], ...], Callable[..., torch.Tensor | None]]] = {
    "sdpa": ((F.scaled_dot_product_attention,), _route_attention),
    "rms_norm": ((F.rms_norm, torch.rms_norm), _route_rms_norm),
}


class _Router(TorchFunctionMode):
    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._table = {function: route for name in names for functions, route in [_ROUTES[name]] for function in functions}
        self.routed: dict[str, int] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        route = self._table.get(function)
        if route is not None and args and args[0].device.type == "neuron":
            result = route(*args, **kwargs)
            if result is not None:
                self.routed[function.__name__] = self.routed.get(function.__name__, 0) + 1
                return result
        return function(*args, **kwargs)


@contextmanager
def route(*names: str) -> Iterator[dict[str, int]]:
    """Inside, PyTorch's functions on ``neuron`` tensors go to the kernels where these can do what is asked, and to PyTorch otherwise.

    ``names`` are ``"sdpa"`` (``scaled_dot_product_attention`` without mask and dropout, heads of at most 128) and ``"rms_norm"`` (one
    normalised dimension, with a weight). Gives a dictionary that counts the calls that were routed, by function name. ::

        with kernels.route("sdpa", "rms_norm") as routed:
            model(tokens)
        print(routed)  # {'scaled_dot_product_attention': 12, 'rms_norm': 25}

    Raises:
        ValueError: there is no such route.
    """
    for name in names:
        if name not in _ROUTES:
            raise ValueError(f"kernels.route: no route {name!r}; there are {', '.join(_ROUTES)}")
    router = _Router(names)
    with router:
        yield router.routed

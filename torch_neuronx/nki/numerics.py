"""Values between memory and the engines: everything is float32 in an engine, and is rounded once when it is written.

Rounding is to nearest even. ``NEURON_RT_STOCHASTIC_ROUNDING_EN=1`` rounds floats down or up with the probability that makes the mean exact
(seed: ``NEURON_RT_STOCHASTIC_ROUNDING_SEED``). Float to integer rounds to nearest even and saturates; NaN gives 0.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable

import torch

from torch_neuronx.nki.dtypes import DType

Reader = Callable[[torch.Tensor], torch.Tensor]

_MANTISSA = {"bfloat16": 7, "float16": 10, "float8_e4m3": 3, "float8_e4m3fn": 3, "float8_e5m2": 2, "tfloat32": 10}
_RANGE = {
    "int8": (-128, 127),
    "int16": (-32768, 32767),
    "int32": (-(2**31), 2**31 - 1),
    "uint8": (0, 255),
    "uint16": (0, 65535),
    "uint32": (0, 2**32 - 1),
}
DIRECT = ("float32", "bfloat16", "float16")  # PyTorch's kernels read and write these themselves


@functools.cache
def _e4m3_values() -> torch.Tensor:
    """All 256 values of Trainium's e4m3 (maximum 240, with infinities)."""
    codes = torch.arange(256)
    sign, exponent, mantissa = codes >> 7, (codes >> 3) & 15, (codes & 7).float()
    values = torch.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * torch.exp2((exponent - 7).float()))
    values = torch.where(exponent == 15, torch.where(mantissa == 0, math.inf, math.nan), values)
    return torch.where(sign == 1, -values, values).float()


def _to_e4m3(x: torch.Tensor) -> torch.Tensor:
    from torch_neuronx.float8 import to_float8_e4m3_trn2

    return to_float8_e4m3_trn2(x, saturate=False).view(torch.uint8)


def to_float(stored: torch.Tensor, dtype: DType) -> torch.Tensor:
    """float32 of a tensor of ``dtype.storage``. Packed types have no value of their own: see ``isa/mx.py``."""
    name = dtype.name
    if name in ("float32", "tfloat32"):
        return stored
    if name == "uint16":
        return (stored.to(torch.int32) & 0xFFFF).to(torch.float32)
    if name == "uint32":
        return (stored.to(torch.int64) & 0xFFFFFFFF).to(torch.float32)
    if name == "float8_e4m3":
        return _e4m3_values()[stored.long()]
    return stored.to(torch.float32)


def from_float(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Rounds float32 to a tensor of ``dtype.storage``."""
    name = dtype.name
    if name == "float32":
        return x
    if dtype.kind == "bool":
        return (x != 0).to(torch.uint8)
    if name in _RANGE:
        low, high = _RANGE[name]
        rounded = torch.nan_to_num(x.double().round_(), nan=0.0).clamp_(low, high)
        return rounded.to(torch.int64).to(dtype.storage)
    if name in _MANTISSA and (stochastic_rounding() or name == "tfloat32"):
        x = _round_mantissa(x, _MANTISSA[name], stochastic_rounding())
    if name == "tfloat32":
        return x
    if name == "float8_e4m3":
        return _to_e4m3(x)
    return x.to(dtype.storage)


def stochastic_rounding() -> bool:
    return os.environ.get("NEURON_RT_STOCHASTIC_ROUNDING_EN", "0") == "1"


@functools.cache
def _rounding_generator() -> torch.Generator:
    return torch.Generator().manual_seed(int(os.environ.get("NEURON_RT_STOCHASTIC_ROUNDING_SEED", "0")))


def _round_mantissa(x: torch.Tensor, bits: int, stochastic: bool) -> torch.Tensor:
    """float32 with ``bits`` explicit mantissa bits."""
    drop = 23 - bits
    raw = x.contiguous().view(torch.int32)
    if stochastic:
        noise = torch.randint(0, 1 << drop, raw.shape, dtype=torch.int32, generator=_rounding_generator())
    else:
        noise = ((raw >> drop) & 1) + ((1 << (drop - 1)) - 1)
    rounded = ((raw + noise) & ~((1 << drop) - 1)).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x)


def bits(stored: torch.Tensor, dtype: DType) -> torch.Tensor:
    """The bit patterns as non-negative int64."""
    return stored.to(torch.int64) & ((1 << (8 * dtype.bytes)) - 1)


def from_bits(pattern: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Integers of ``dtype`` from int64, keeping the low bits."""
    width = 8 * dtype.bytes
    low = pattern & ((1 << width) - 1)
    if dtype.storage is not torch.uint8:
        low = torch.where(low >= 1 << (width - 1), low - (1 << width), low)
    return low.to(dtype.storage)


def as_integers(stored: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Exact int64 values of an integer dtype."""
    return bits(stored, dtype) if dtype.kind == "uint" else stored.to(torch.int64)


# ScalarE's functions. float32 in, float32 out; the hardware evaluates piecewise polynomials, here they are PyTorch's.

_F = torch.nn.functional
_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)


def _gelu_dx(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _sigmoid_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _sigmoid_gelu_dx(x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(1.702 * x)
    return s + 1.702 * x * s * (1 - s)


def _silu_dx(x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def _sin(x: torch.Tensor) -> torch.Tensor:
    """sin on [-pi, pi]; outside, a cubic through the end of the range (sin(9.0) is about 27.65)."""
    over = torch.where(x > math.pi, x - math.pi, torch.where(x < -math.pi, x + math.pi, torch.zeros_like(x)))
    return torch.where(over == 0, torch.sin(x), -over + over * over * over / 6)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "copy": lambda x: x,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": lambda x: _F.gelu(x),
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": lambda x: _F.gelu(x, approximate="tanh"),
    "gelu_apprx_sigmoid": _sigmoid_gelu,
    "gelu_apprx_sigmoid_dx": _sigmoid_gelu_dx,
    "silu": lambda x: _F.silu(x),
    "silu_dx": _silu_dx,
    "tanh": torch.tanh,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "mish": lambda x: _F.mish(x),
    "erf": torch.erf,
    "erf_dx": lambda x: _TWO_OVER_SQRT_PI * torch.exp(-x * x),
    "exp": torch.exp,
    "sign": torch.sign,
    "abs": torch.abs,
    "log": torch.log,
    "sin": _sin,
    "arctan": torch.arctan,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
}

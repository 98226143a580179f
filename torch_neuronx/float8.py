"""Trainium2's float8 e4m3, which is not PyTorch's.

Both have 4 exponent bits with bias 7 and 3 mantissa bits, and encode all magnitudes up to 240 alike. ``torch.float8_e4m3fn`` (OCP) goes on
to 448 and has no infinity; on Trainium2 the topmost exponent is kept for infinity (``S.1111.000``) and NaN (the other mantissas), so the
largest number is 240. The same bits mean 256 to 448 to PyTorch, hence the conversion is explicit. Trainium3 uses the OCP format.
"""

from __future__ import annotations

import torch

FLOAT8_E4M3_TRN2_MAX = 240.0

# Rounded to three mantissa bits, what lies at or above this is 256 (a tie goes to the even mantissa).
_OVERFLOWS_FROM = 248.0
_INFINITY, _NAN, _SIGN = 0x78, 0x7F, 0x80


def to_float8_e4m3_trn2(tensor: torch.Tensor, *, saturate: bool = True) -> torch.Tensor:
    """Rounds to the nearest value of Trainium2's e4m3 (ties to even), on the tensor's device.

    Args:
        tensor: any floating dtype; float64 is first rounded to float32.
        saturate: numbers out of range become +-240, as quantisation wants it; False makes them infinite, as IEEE 754 does. Infinity and NaN
            are kept in both cases.

    Returns:
        A ``torch.float8_e4m3fn`` tensor of the same shape that holds Trainium2's bits. Unless it holds infinity or NaN, PyTorch reads the
        same numbers from it, so it may go to ``torch._scaled_mm`` with scales chosen for :data:`FLOAT8_E4M3_TRN2_MAX`.

    Raises:
        TypeError: the dtype is not floating point.
    """
    if not tensor.is_floating_point():
        raise TypeError(f"to_float8_e4m3_trn2 takes a floating-point tensor, not {tensor.dtype}. Convert it first: tensor.float()")
    values = tensor.to(torch.float32)
    magnitude = values.abs()
    finite = magnitude.clamp(max=FLOAT8_E4M3_TRN2_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    infinite = torch.isinf(values) if saturate else magnitude >= _OVERFLOWS_FROM
    bits = torch.where(infinite, _INFINITY, torch.where(torch.isnan(values), _NAN, finite))
    return torch.where(torch.signbit(values), bits | _SIGN, bits).to(torch.uint8).view(torch.float8_e4m3fn)


def from_float8_e4m3_trn2(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Reads the bits of ``tensor`` (``torch.float8_e4m3fn`` or ``torch.uint8``) as Trainium2's e4m3; the inverse of
    :func:`to_float8_e4m3_trn2`.

    Raises:
        TypeError: ``tensor`` has another dtype.
    """
    if tensor.dtype not in (torch.float8_e4m3fn, torch.uint8):
        raise TypeError(f"from_float8_e4m3_trn2 takes the bits as torch.float8_e4m3fn or torch.uint8, not as {tensor.dtype}")
    bits = tensor.view(torch.uint8)
    magnitude = bits & 0x7F
    values = bits.view(torch.float8_e4m3fn).to(torch.float32)
    sign = torch.where(bits >= _SIGN, -1.0, 1.0)
    values = torch.where(magnitude == _INFINITY, sign * float("inf"), values)
    return torch.where(magnitude > _INFINITY, float("nan"), values).to(dtype)

"""The device's random words (csrc/aten/philox.h) as a JAX expression: Philox4x32-10 keyed by seed, offset and element index.

Word ``w`` of a call is lane ``w % 4`` of the counter ``offset / 4 + w / 4``, all in 32-bit arithmetic: the chip has no 64-bit product.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def _u32(value: int) -> Any:
    return jnp.asarray(value & 0xFFFFFFFF, jnp.uint32)


def _multiply(constant: int, x: Any) -> tuple[Any, Any]:
    """High and low half of a 32 x 32 bit product."""
    low = x * _u32(constant)
    a, b = _u32(constant >> 16), _u32(constant & 0xFFFF)
    c, d = x >> _u32(16), x & _u32(0xFFFF)
    middle = b * c + (b * d >> _u32(16))
    carry = a * d + (middle & _u32(0xFFFF))
    return a * c + (middle >> _u32(16)) + (carry >> _u32(16)), low


def _halves(number: Any) -> tuple[Any, Any]:
    """The low and high 32 bits of a Python int or an int64 array."""
    if isinstance(number, int):
        return _u32(number), _u32(number >> 32)
    number = number.astype(jnp.uint64)
    return number.astype(jnp.uint32), (number >> jnp.asarray(32, jnp.uint64)).astype(jnp.uint32)


def words(seed: Any, offset: Any, count: int) -> Any:
    """The first ``count`` words of the call (seed, offset), uint32. Both may be Python ints or 0-dim int64 arrays."""
    blocks = -(-count // 4)
    first = offset >> 2 if isinstance(offset, int) else lax.shift_right_logical(offset.astype(jnp.int64), jnp.asarray(2, jnp.int64))
    low, high = _halves(first)
    index = lax.iota(jnp.uint32, blocks)
    c0 = index + low
    c1 = jnp.where(c0 < index, high + _u32(1), jnp.broadcast_to(high, index.shape))  # the carry
    c2 = c3 = jnp.zeros((blocks,), jnp.uint32)
    k0, k1 = _halves(seed)
    for _ in range(_ROUNDS):
        h0, l0 = _multiply(_M0, c0)
        h1, l1 = _multiply(_M1, c2)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = k0 + _u32(_W0), k1 + _u32(_W1)
    return jnp.stack([c0, c1, c2, c3], -1).reshape(-1)[:count]


def words64(seed: Any, offset: Any, count: int) -> Any:
    """Pairs of words as uint64: what float64 and whole numbers are drawn from."""
    pairs = words(seed, offset, 2 * count).reshape(count, 2)
    return lax.bitcast_convert_type(pairs, jnp.uint64)


def unit(bits: Any) -> Any:
    """(0, 1), as dense as the type allows near 0: float32 from uint32, float64 from uint64."""
    if bits.dtype == jnp.uint32:
        return jnp.minimum((bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32), jnp.float32(1 - 2.0**-24))
    return ((bits >> jnp.asarray(12, jnp.uint64)).astype(jnp.float64) + 0.5) * 2.0**-52

"""Random numbers, the device's own: the same words for the same (seed, offset) as csrc/aten/random_kernels.cpp.

``neuron::philox_*`` name their words. ATen's random overloads take theirs from the trace's :class:`RandomSource`.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.philox import unit, words, words64
from torch_neuronx.lowering.promotion import constant, convert, is_float, result_dtype, widest
from torch_neuronx.lowering.table import CallInfo, NotLowered, lowers


def _real(dtype: Any) -> Any:
    """What reals are drawn in."""
    return jnp.dtype(jnp.float64) if dtype == jnp.float64 else jnp.dtype(jnp.float32)


def _bits(dtype: Any, seed: Any, offset: Any, count: int) -> Any:
    return words64(seed, offset, count) if _real(dtype) == jnp.float64 else words(seed, offset, count)


_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def uniform(shape: Any, dtype: Any, low: Any, high: Any, seed: Any, offset: Any) -> Any:
    """[low, high): the top bits of each word, as many as the dtype has digits."""
    count, real = math.prod(shape), _real(dtype)
    drawn = _half_open(_bits(dtype, seed, offset, count), dtype)
    low, high = convert(low, real), convert(high, real)
    return (drawn * (high - low) + low).reshape(shape).astype(dtype)


def _half_open(bits: Any, dtype: Any) -> Any:
    """[0, 1) in multiples of 2 ** -(digits of ``dtype``)."""
    digits = _DIGITS[str(dtype)]
    whole = (bits >> jnp.asarray(8 * bits.dtype.itemsize - digits, bits.dtype)).astype(_real(dtype))
    return whole * jnp.asarray(2.0**-digits, whole.dtype)


def normal(shape: Any, dtype: Any, mean: Any, std: Any, seed: Any, offset: Any) -> Any:
    """Box-Muller: elements 2k and 2k + 1 are the cosine and the sine branch of their two words."""
    count, real = math.prod(shape), _real(dtype)
    pairs = -(-count // 2)
    bits = _bits(dtype, seed, offset, 2 * pairs).reshape(pairs, 2)
    radius = jnp.sqrt(-2 * jnp.log(unit(bits[:, 0]))) * convert(std, real)
    cosine, sine = _turn(bits[:, 1], real)
    both = jnp.stack([radius * cosine, radius * sine], -1) + convert(mean, real)
    return both.reshape(-1)[:count].reshape(shape).astype(dtype)


def _turn(bits: Any, real: Any) -> tuple[Any, Any]:
    """Cosine and sine of the turn ``bits``: the quadrant comes off exactly."""
    size = 8 * bits.dtype.itemsize
    quadrant = (bits + jnp.asarray(1 << (size - 3), bits.dtype)) >> jnp.asarray(size - 2, bits.dtype)
    rest = bits - (quadrant << jnp.asarray(size - 2, bits.dtype))
    signed = lax.bitcast_convert_type(rest, jnp.int64 if size == 64 else jnp.int32).astype(real)
    angle = signed * jnp.asarray(math.pi / 2 / 2.0 ** (size - 2), real)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    odd, behind = (quadrant & jnp.asarray(1, bits.dtype)) != 0, (quadrant & jnp.asarray(2, bits.dtype)) != 0
    cosine, sine = jnp.where(odd, -sine, cosine), jnp.where(odd, cosine, sine)
    return jnp.where(behind, -cosine, cosine), jnp.where(behind, -sine, sine)


def exponential(shape: Any, dtype: Any, rate: Any, seed: Any, offset: Any) -> Any:
    bits = _bits(dtype, seed, offset, math.prod(shape))
    return (-jnp.log(unit(bits)) / convert(rate, _real(dtype))).reshape(shape).astype(dtype)


def open_unit(shape: Any, dtype: Any, seed: Any, offset: Any) -> Any:
    return unit(_bits(dtype, seed, offset, math.prod(shape))).reshape(shape)


def _passes(drawn: Any, chance: Any) -> Any:
    """Whether each word lies below chance * 2^32, which is rounded as csrc/aten/random_tiles.h rounds it."""
    if isinstance(chance, (int, float)):
        limit = math.floor(float(chance) * 2.0**32 + 0.5)
        return drawn <= jnp.asarray(limit - 1, jnp.uint32) if limit > 0 else jnp.zeros(drawn.shape, jnp.bool_)
    # Every step is exact in float32 too, so that no float64 is needed.
    scaled = convert(chance, _real(chance.dtype)) * 2.0**32
    floor = jnp.floor(scaled)
    limit = floor + (scaled - floor >= 0.5).astype(floor.dtype)
    always = limit >= 2.0**32
    return always | (drawn < jnp.where(always, 0, limit).astype(jnp.uint32))


def bernoulli(shape: Any, chance: Any, seed: Any, offset: Any) -> Any:
    """bool; ``chance`` is a number or an array of ``shape``."""
    return _passes(words(seed, offset, math.prod(shape)).reshape(shape), chance)


def integers(shape: Any, span: Any, base: Any, seed: Any, offset: Any) -> Any:
    """int64 in base + [0, span): the high half of word64 * span; a span of 0 means 2^64."""
    drawn = words64(seed, offset, math.prod(shape))
    base = convert(base, jnp.int64)
    span = convert(span, jnp.int64)
    wide_span = lax.bitcast_convert_type(span, jnp.uint64)
    product = jnp.where(wide_span == 0, drawn, _high(drawn, wide_span))
    return (lax.bitcast_convert_type(product, jnp.int64) + base).reshape(shape)


def _high(a: Any, b: Any) -> Any:
    """High half of a 64 x 64 bit product."""
    mask, half = jnp.asarray(0xFFFFFFFF, jnp.uint64), jnp.asarray(32, jnp.uint64)
    a0, a1, b0, b1 = a & mask, a >> half, b & mask, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    carry = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> half) + (carry >> half)


def permutation(count: int, seed: Any, offset: Any) -> Any:
    """The order of ``count`` random 64-bit keys, int64."""
    keys = words64(seed, offset, count)
    return lax.sort((keys, lax.iota(jnp.int64, count)), num_keys=1)[1]


def dropout(x: Any, p: Any, seed: Any, offset: Any) -> tuple[Any, Any]:
    """(x * mask / (1 - p), mask)."""
    keep = 1 - p
    mask = bernoulli(x.shape, keep, seed, offset)
    scale = (0.0 if keep == 0 else 1 / keep) if isinstance(keep, (int, float)) else jnp.where(keep == 0, jnp.zeros_like(keep), 1 / keep)
    work = _real(x.dtype) if is_float(x) else x.dtype
    if not is_float(x):
        return (x * mask.astype(x.dtype) * convert(scale, x.dtype)), mask
    return (x.astype(work) * jnp.where(mask, convert(scale, work), convert(0.0, work))).astype(x.dtype), mask


# ---- What the device's own calls name: the functional halves of neuron::philox_*_ ----


@lowers("neuron::philox_uniform_")
def _philox_uniform(x: Any, low: Any, high: Any, seed: Any, offset: Any) -> Any:
    return uniform(x.shape, x.dtype, low, high, seed, offset)


@lowers("neuron::philox_normal_")
def _philox_normal(x: Any, mean: Any, std: Any, seed: Any, offset: Any) -> Any:
    return normal(x.shape, x.dtype, mean, std, seed, offset)


@lowers("neuron::philox_log_normal_")
def _philox_log_normal(x: Any, mean: Any, std: Any, seed: Any, offset: Any) -> Any:
    return jnp.exp(normal(x.shape, _real(x.dtype), mean, std, seed, offset)).astype(x.dtype)


@lowers("neuron::philox_exponential_")
def _philox_exponential(x: Any, rate: Any, seed: Any, offset: Any) -> Any:
    return exponential(x.shape, x.dtype, rate, seed, offset)


@lowers("neuron::philox_cauchy_")
def _philox_cauchy(x: Any, median: Any, sigma: Any, seed: Any, offset: Any) -> Any:
    real = _real(x.dtype)
    drawn = open_unit(x.shape, x.dtype, seed, offset)
    return (convert(median, real) + convert(sigma, real) * jnp.tan(math.pi * (drawn - 0.5))).astype(x.dtype)


def _narrowed(bits: Any, real: Any) -> Any:
    """What ``real`` is drawn from: the words64 ``bits``, or the upper half of each."""
    return bits if real == jnp.float64 else (bits >> jnp.asarray(32, jnp.uint64)).astype(jnp.uint32)


@lowers("neuron::philox_geometric_", call=True)
def _philox_geometric(call: CallInfo, x: Any, p: Any, seed: Any, offset: Any) -> Any:
    real = widest(call)
    rate = -jnp.log1p(-convert(p, real))
    drawn = unit(_narrowed(words64(seed, offset, x.size), real)).reshape(x.shape)
    return convert(jnp.ceil(-jnp.log(drawn) / rate), x.dtype)


@lowers("neuron::philox_random_")
def _philox_random(x: Any, span: Any, base: Any, seed: Any, offset: Any) -> Any:
    return convert(integers(x.shape, span, base, seed, offset), x.dtype)


@lowers("neuron::philox_bernoulli_", "neuron::philox_bernoulli_.Tensor")
def _philox_bernoulli(x: Any, p: Any, seed: Any, offset: Any) -> Any:
    chance = jnp.broadcast_to(p, x.shape) if getattr(p, "ndim", 0) else p
    return convert(bernoulli(x.shape, chance, seed, offset), x.dtype)


@lowers("neuron::philox_dropout")
def _philox_dropout(x: Any, p: Any, seed: Any, offset: Any) -> Any:
    return dropout(x, p, seed, offset)


@lowers("neuron::philox_randperm_")
def _philox_randperm(x: Any, seed: Any, offset: Any) -> Any:
    return convert(permutation(x.size, seed, offset).reshape(x.shape), x.dtype)


@lowers("neuron::philox_multinomial", call=True)
def _philox_multinomial(call: CallInfo, x: Any, samples: int, replacement: bool, seed: Any, offset: Any) -> Any:
    from torch_neuronx.lowering.ops.sorting import sort_with_indices

    if not replacement or samples == 1:
        real = _real(x.dtype)
        race = x.astype(real) / exponential(x.shape, real, 1, seed, offset)
        if samples == 1:
            return jnp.argmax(race, -1, keepdims=True).astype(jnp.int64)
        return lax.slice_in_dim(sort_with_indices(race, -1, descending=True)[1], 0, samples, axis=x.ndim - 1)
    real, shape = widest(call), (*x.shape[:-1], samples)
    sums = lax.cumsum(x.astype(real), x.ndim - 1)
    total = sums[..., -1:]
    bits = _narrowed(words64(seed, offset, math.prod(shape)), real)
    points = _half_open(bits, real).reshape(shape) * total
    points = jnp.minimum(points, jnp.nextafter(total, jnp.zeros_like(total)))
    return jnp.sum(sums[..., None, :] <= points[..., :, None], -1, dtype=jnp.int64)


# ---- ATen's overloads ----


class RandomSource:
    """Seed and running offset of the words that a trace's random calls take: Python ints, or 0-dim int64 arrays."""

    current: RandomSource | None = None

    def __init__(self, seed: Any, offset: Any) -> None:
        self.seed, self.offset = seed, offset
        self.used = 0  # words taken so far

    def take(self, count: int) -> tuple[Any, Any]:
        """(seed, offset) of a call that needs ``count`` words."""
        offset = self.offset + self.used
        self.used += -(-count // 4) * 4
        return self.seed, offset


def _taken(count: int) -> tuple[Any, Any]:
    source = RandomSource.current
    if source is None:
        raise NotLowered("a random operator", "it does not pass its seed and offset")
    return source.take(count)


def _words_of(shape: Any, dtype: Any) -> tuple[Any, Any]:
    return _taken(math.prod(shape) * (2 if dtype == jnp.float64 else 1))


def _shape_of(call: CallInfo) -> tuple[tuple[int, ...], Any]:
    return tuple(call.out.shape), result_dtype(call)


@lowers("rand", "rand_like", call=True)
def _rand(call: CallInfo, *_: Any, **__: Any) -> Any:
    shape, dtype = _shape_of(call)
    return uniform(shape, dtype, 0, 1, *_words_of(shape, dtype))


@lowers("randn", "randn_like", call=True)
def _randn(call: CallInfo, *_: Any, **__: Any) -> Any:
    shape, dtype = _shape_of(call)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.dtype(jnp.float32 if dtype == jnp.complex64 else jnp.float64)
        pairs = normal((*shape, 2), part, 0, math.sqrt(0.5), *_words_of((*shape, 2), part))
        return lax.complex(pairs[..., 0], pairs[..., 1])
    return normal(shape, dtype, 0, 1, *_words_of(shape, dtype))


@lowers("randint", "randint.low", "randint_like", "randint_like.low_dtype", call=True)
def _randint(call: CallInfo, *args: Any, **__: Any) -> Any:
    shape, dtype = _shape_of(call)
    numbers = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
    low, high = (numbers[0], numbers[1]) if len(numbers) > 1 else (0, numbers[0])
    return convert(integers(shape, high - low, low, *_taken(2 * math.prod(shape))), dtype)


@lowers("randperm", call=True)
def _randperm(call: CallInfo, n: int, **__: Any) -> Any:
    return convert(permutation(n, *_taken(2 * n)), result_dtype(call))


@lowers("uniform")
def _uniform(x: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    return uniform(x.shape, x.dtype, low, high, *_words_of(x.shape, x.dtype))


@lowers("normal_functional")
def _normal(x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    return normal(x.shape, x.dtype, mean, std, *_words_of(x.shape, x.dtype))


@lowers("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", call=True)
def _normal_tensors(call: CallInfo, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
    shape, dtype = _shape_of(call)
    return normal(shape, dtype, 0, 1, *_words_of(shape, dtype)) * convert(std, dtype) + convert(mean, dtype)


@lowers("normal.float_float", call=True)
def _normal_numbers(call: CallInfo, mean: float, std: float, *_: Any, **__: Any) -> Any:
    shape, dtype = _shape_of(call)
    return normal(shape, dtype, mean, std, *_words_of(shape, dtype))


@lowers("log_normal")
def _log_normal(x: Any, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Any:
    return _philox_log_normal(x, mean, std, *_words_of(x.shape, x.dtype))


@lowers("exponential")
def _exponential(x: Any, rate: float = 1.0, *, generator: Any = None) -> Any:
    return exponential(x.shape, x.dtype, rate, *_words_of(x.shape, x.dtype))


@lowers("cauchy")
def _cauchy(x: Any, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Any:
    return _philox_cauchy(x, median, sigma, *_words_of(x.shape, x.dtype))


@lowers("geometric", call=True)
def _geometric(call: CallInfo, x: Any, p: float, *, generator: Any = None) -> Any:
    return _philox_geometric(call, x, p, *_taken(2 * x.size))


@lowers("random", "random.from", "random.to", "random.from_to")
def _random(x: Any, low: int | None = None, high: int | None = None, *, generator: Any = None) -> Any:
    if high is None:
        low, high = 0, low
    if high is None:
        whole = jnp.issubdtype(x.dtype, jnp.integer)
        high = 2 if x.dtype == jnp.bool_ else int(jnp.iinfo(x.dtype).max) + 1 if whole else 2 ** _DIGITS[str(x.dtype)]
    span = high - (low or 0)
    return convert(integers(x.shape, constant(span, jnp.int64), low or 0, *_taken(2 * x.size)), x.dtype)


@lowers("bernoulli", "bernoulli.p", "bernoulli.Tensor")
def _bernoulli(x: Any, p: Any = None, *, generator: Any = None) -> Any:
    chance = x if p is None else (jnp.broadcast_to(p, x.shape) if getattr(p, "ndim", 0) else p)
    return convert(bernoulli(x.shape, chance, *_taken(x.size)), x.dtype)


@lowers("native_dropout")
def _native_dropout(x: Any, p: float, train: bool | None) -> Any:
    if train is False or x.size == 0:
        return x, jnp.ones(x.shape, jnp.bool_)
    return dropout(x, p, *_taken(x.size))


@lowers("rrelu_with_noise_functional")
def _rrelu(
    x: Any, noise: Any, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False, generator: Any = None
) -> Any:
    """Leaky ReLU with a drawn slope where x is not positive; the slopes are the second result."""
    if not training:
        return jnp.where(x > 0, x, x * convert((lower + upper) / 2, x.dtype)), noise
    slopes = jnp.where(x > 0, jnp.ones_like(x), uniform(x.shape, x.dtype, lower, upper, *_words_of(x.shape, x.dtype)))
    return x * slopes, slopes


@lowers("multinomial", call=True)
def _multinomial(call: CallInfo, x: Any, samples: int, replacement: bool = False, *, generator: Any = None) -> Any:
    rows = 1 if x.ndim == 1 else x.shape[0]
    count = 2 * rows * samples if replacement and samples > 1 else x.size * (2 if x.dtype == jnp.float64 else 1)
    return _philox_multinomial(call, x, samples, replacement, *_taken(count))

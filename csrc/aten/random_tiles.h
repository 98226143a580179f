// Turns Philox words into numbers, a tile at a time: plain loops that compilers vectorise. Knows nothing of PyTorch.
//
// Every function works element by element with IEEE operations only (no fused multiply-add, no libm), so a value depends on its
// words alone: not on the vector width, nor on its place in a tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/aten/philox.h"

namespace neuron::random {

/// Elements in a tile, and what sizes of buffers are rounded up to.
inline constexpr size_t tile_size = 1024;
inline constexpr size_t granule = 64;

constexpr size_t round_up(size_t n) { return (n + granule - 1) / granule * granule; }

/// words[j] = stream.word(first + j). `first` is a multiple of 4, `count` of `granule`.
void fill_words(const RandomStream& stream, uint64_t first, uint32_t* words, size_t count);

// ---- Real numbers: one word an element for float, two for double; n is even. ----

/// In [from, to), on a grid of 2^-digits of (to - from): digits = 24 (float32), 53 (float64), 11 (float16), 8 (bfloat16).
void uniform(const uint32_t* words, size_t n, float from, float to, int digits, float* out);
void uniform(const uint32_t* words, size_t n, double from, double to, int digits, double* out);

/// Normal numbers by Box-Muller. `words` starts at an even element.
void normal(const uint32_t* words, size_t n, float mean, float std, float* out);
void normal(const uint32_t* words, size_t n, double mean, double std, double* out);

/// -log(u) / rate for u in (0, 1): never 0, never infinite.
void exponential(const uint32_t* words, size_t n, float rate, float* out);
void exponential(const uint32_t* words, size_t n, double rate, double* out);

/// In the open interval (0, 1): for transforms with a pole at an end.
void open_unit(const uint32_t* words, size_t n, float* out);
void open_unit(const uint32_t* words, size_t n, double* out);

// ---- Choices: one word an element. ----

/// What a word is compared with so that it is less with probability p, to 2^-32. p is in [0, 1].
constexpr uint64_t threshold(double p) { return static_cast<uint64_t>(p * 4294967296.0 + 0.5); }

/// 1 with probability p, as threshold(p) says.
void bernoulli(const uint32_t* words, size_t n, uint64_t threshold, uint8_t* out);

/// mask = bernoulli; out = in * (mask ? scale : 0). A NaN stays a NaN.
void dropout(const uint32_t* words, size_t n, uint64_t threshold, float scale, const float* in, float* out, uint8_t* mask);
void dropout(const uint32_t* words, size_t n, uint64_t threshold, double scale, const double* in, double* out, uint8_t* mask);

// ---- Integers: two words an element. ----

/// base + floor(x * range / 2^64); range = 0 stands for 2^64. Arithmetic wraps, as two's complement does.
void integers(const uint32_t* words, size_t n, uint64_t range, int64_t base, int64_t* out);

}  // namespace neuron::random

// Philox4x32-10, the counter-based generator behind every random op of the device. Knows nothing of PyTorch.
//
// Note [Random stream]
// A random call owns a pair (seed, offset): `seed` is the generator's, `offset` is what NeuronGenerator::reserve() gave, counted in
// 32-bit words and a multiple of 4. Word w of the call is
//
//     lane w % 4 of Philox4x32-10(key = seed, counter = offset / 4 + w / 4)
//
// where key and counter are little-endian in their 32-bit parts (the upper half of the 128-bit counter stays 0). Element i of
// the result, counted in *logical* (row-major) order, is drawn from
//
//     word i                          float32; float16 and bfloat16 (drawn in float32, then rounded); bernoulli and dropout
//     words 2i (low) and 2i + 1       float64; whole numbers (random_, geometric_) and the keys of randperm, whatever the dtype
//
// and element i of a complex tensor is elements 2i and 2i + 1 of its real view. Normal numbers come in pairs: elements 2k and
// 2k + 1 are the cosine and the sine branch of Box-Muller, the radius from the words of 2k and the angle from those of 2k + 1.
// Nothing else enters: not strides, threads, tiles or the target. So the first m elements of a call do not depend on how many follow.
#pragma once

#include <array>
#include <cstdint>

namespace neuron {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Multipliers, and what is added to the key after each round (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
inline constexpr uint32_t philox_m0 = 0xD2511F53, philox_m1 = 0xCD9E8D57;
inline constexpr uint32_t philox_w0 = 0x9E3779B9, philox_w1 = 0xBB67AE85;
inline constexpr int philox_rounds = 10;

/// The four words of one counter.
constexpr PhiloxCounter philox4x32(PhiloxCounter c, PhiloxKey key) {
  for (int round = 0; round < philox_rounds; ++round) {
    const uint64_t p0 = uint64_t{philox_m0} * c[0];
    const uint64_t p1 = uint64_t{philox_m1} * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ key[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ key[1], uint32_t(p0)};
    key = {key[0] + philox_w0, key[1] + philox_w1};
  }
  return c;
}

/// The words that one random call may use.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t offset = 0;  ///< in words, a multiple of 4

  /// Word `w` of the call, see Note [Random stream].
  constexpr uint32_t word(uint64_t w) const {
    const uint64_t block = offset / 4 + w / 4;
    const PhiloxCounter counter{uint32_t(block), uint32_t(block >> 32), 0, 0};
    return philox4x32(counter, {uint32_t(seed), uint32_t(seed >> 32)})[w % 4];
  }

  /// Words 2i and 2i + 1 as one number.
  constexpr uint64_t word64(uint64_t i) const { return word(2 * i) | uint64_t{word(2 * i + 1)} << 32; }
};

}  // namespace neuron

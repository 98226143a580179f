#include "csrc/aten/random_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <type_traits>

// One copy of each loop per instruction set; the loader picks. Results are the same in all of them (see random_tiles.h).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define NEURON_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define NEURON_CLONES
#endif
#define NEURON_INLINE static inline __attribute__((always_inline))

namespace neuron::random {
namespace {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

/// The random bits of element i.
NEURON_INLINE uint32_t bits_of(const uint32_t* words, size_t i, float) { return words[i]; }
NEURON_INLINE uint64_t bits_of(const uint32_t* words, size_t i, double) { return words[2 * i] | uint64_t{words[2 * i + 1]} << 32; }

/// (0, 1), as dense as T allows near 0: every bit counts. The largest value is the last one below 1.
NEURON_INLINE float unit(uint32_t x) { return std::min((float(x) + 0.5f) * 0x1p-32f, 1 - 0x1p-24f); }
NEURON_INLINE double unit(uint64_t x) { return (double(x >> 12) + 0.5) * 0x1p-52; }

/// sum of z^k * c[k], k < N.
template <size_t N, class T>
NEURON_INLINE T polynomial(T z, const T (&c)[N]) {
  T sum = c[N - 1];
  for (size_t k = N - 1; k-- > 0;) sum = sum * z + c[k];
  return sum;
}

/// log(u) for normal u in (0, 1), within 1 ulp or so: u = 2^e m, m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)).
template <class T>
NEURON_INLINE T log_unit(T u) {
  using U = Bits<T>;
  using S = std::make_signed_t<U>;
  constexpr int mantissa = sizeof(T) == 4 ? 23 : 52;
  constexpr U root_half = std::bit_cast<U>(T(std::numbers::sqrt2 / 2));
  const U bits = std::bit_cast<U>(u);
  const S e = S(bits - root_half) >> mantissa;
  const T m = std::bit_cast<T>(U(bits - (U(e) << mantissa)));
  const T s = (m - 1) / (m + 1);
  const T z = s * s;
  T tail;  // atanh(s) / s - 1, over z
  if constexpr (sizeof(T) == 4) {
    constexpr T c[] = {T(1) / 3, T(1) / 5, T(1) / 7, T(1) / 9};
    tail = polynomial(z, c);
  } else {
    constexpr T c[] = {T(1) / 3, T(1) / 5, T(1) / 7, T(1) / 9, T(1) / 11, T(1) / 13, T(1) / 15, T(1) / 17, T(1) / 19, T(1) / 21};
    tail = polynomial(z, c);
  }
  // ln 2 in two parts: e * high is exact.
  constexpr double ln2 = std::numbers::ln2;
  constexpr T high = sizeof(T) == 4 ? T(0x1.62e4p-1) : T(0x1.62e42feep-1);
  constexpr T low = sizeof(T) == 4 ? T(ln2 - 0x1.62e4p-1) : T(0x1.a39ef35793c76p-33);
  return T(e) * high + (T(e) * low + 2 * (s + s * z * tail));
}

/// Cosine and sine of 2 pi x / 2^(bits of x). The quadrant comes off exactly, so the series sees at most pi / 4.
template <class T>
NEURON_INLINE void turn(Bits<T> x, T& cosine, T& sine) {
  using U = Bits<T>;
  using S = std::make_signed_t<U>;
  constexpr int bits = 8 * sizeof(U);
  const U quadrant = (x + (U(1) << (bits - 3))) >> (bits - 2);
  const T a = T(S(x - (quadrant << (bits - 2)))) * T(std::numbers::pi / 2 / (U(1) << (bits - 2)));
  const T z = a * a;
  T c, s;
  if constexpr (sizeof(T) == 4) {
    constexpr T cc[] = {T(1. / 24), T(-1. / 720), T(1. / 40320), T(-1. / 3628800)};
    constexpr T sc[] = {T(-1. / 6), T(1. / 120), T(-1. / 5040), T(1. / 362880)};
    c = polynomial(z, cc), s = polynomial(z, sc);
  } else {
    constexpr T cc[] = {1. / 24,        -1. / 720,          1. / 40320,           -1. / 3628800,
                        1. / 479001600, -1. / 87178291200., 1. / 20922789888000., -1. / 6402373705728000.};
    constexpr T sc[] = {-1. / 6,         1. / 120,         -1. / 5040,           1. / 362880,
                        -1. / 39916800., 1. / 6227020800., -1. / 1307674368000., 1. / 355687428096000.};
    c = polynomial(z, cc), s = polynomial(z, sc);
  }
  c = 1 - (z / 2 - z * z * c);
  s = a + a * z * s;
  const T swapped_c = quadrant & 1 ? -s : c;
  const T swapped_s = quadrant & 1 ? c : s;
  cosine = quadrant & 2 ? -swapped_c : swapped_c;
  sine = quadrant & 2 ? -swapped_s : swapped_s;
}

template <class T>
NEURON_INLINE void uniform_loop(const uint32_t* __restrict words, size_t n, T from, T to, int digits, T* __restrict out) {
  const T step = std::bit_cast<T>(Bits<T>(sizeof(T) == 4 ? 127 - digits : 1023 - digits) << (sizeof(T) == 4 ? 23 : 52));
  const int shift = 8 * sizeof(T) - digits;
  const T range = to - from;
  for (size_t i = 0; i < n; ++i) out[i] = T(std::make_signed_t<Bits<T>>(bits_of(words, i, T{}) >> shift)) * step * range + from;
}

template <class T>
NEURON_INLINE void normal_loop(const uint32_t* __restrict words, size_t n, T mean, T std, T* __restrict out) {
  for (size_t k = 0; k < n / 2; ++k) {
    const T radius = std::sqrt(-2 * log_unit(unit(bits_of(words, 2 * k, T{})))) * std;
    T c, s;
    turn(bits_of(words, 2 * k + 1, T{}), c, s);
    out[2 * k] = radius * c + mean;
    out[2 * k + 1] = radius * s + mean;
  }
}

template <class T>
NEURON_INLINE void exponential_loop(const uint32_t* __restrict words, size_t n, T rate, T* __restrict out) {
  for (size_t i = 0; i < n; ++i) out[i] = -log_unit(unit(bits_of(words, i, T{}))) / rate;
}

template <class T>
NEURON_INLINE void open_unit_loop(const uint32_t* __restrict words, size_t n, T* __restrict out) {
  for (size_t i = 0; i < n; ++i) out[i] = unit(bits_of(words, i, T{}));
}

template <class T>
NEURON_INLINE void dropout_loop(const uint32_t* __restrict words, size_t n, uint64_t threshold, T scale, const T* __restrict in,
                                T* __restrict out, uint8_t* __restrict mask) {
  // threshold may be 2^32, which a word never reaches: compare with the last word that passes, and treat 0 apart.
  const uint32_t last = uint32_t(threshold - 1);
  const uint8_t any = threshold != 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t kept = (words[i] <= last) & any;
    mask[i] = uint8_t(kept);
    out[i] = in[i] * (kept ? scale : T(0));
  }
}

}  // namespace

NEURON_CLONES void fill_words(const RandomStream& stream, uint64_t first, uint32_t* __restrict words, size_t count) {
  const uint64_t block = stream.offset / 4 + first / 4;
  const uint32_t seed_low = uint32_t(stream.seed), seed_high = uint32_t(stream.seed >> 32);
  for (size_t b = 0; b < count / 4; ++b) {
    uint32_t c0 = uint32_t(block + b), c1 = uint32_t((block + b) >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = seed_low, k1 = seed_high;
#pragma GCC unroll 10
    for (int round = 0; round < philox_rounds; ++round) {
      const uint64_t p0 = uint64_t{philox_m0} * c0;
      const uint64_t p1 = uint64_t{philox_m1} * c2;
      c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
      c1 = uint32_t(p1);
      c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
      c3 = uint32_t(p0);
      k0 += philox_w0, k1 += philox_w1;
    }
    words[4 * b] = c0;
    words[4 * b + 1] = c1;
    words[4 * b + 2] = c2;
    words[4 * b + 3] = c3;
  }
}

// target_clones does not go with templates: these are the loops' instances.
#define NEURON_INSTANCES(T)                                                                                                      \
  NEURON_CLONES void uniform(const uint32_t* words, size_t n, T from, T to, int digits, T* out) {                                \
    uniform_loop(words, n, from, to, digits, out);                                                                               \
  }                                                                                                                              \
  NEURON_CLONES void normal(const uint32_t* words, size_t n, T mean, T std, T* out) { normal_loop(words, n, mean, std, out); }   \
  NEURON_CLONES void exponential(const uint32_t* words, size_t n, T rate, T* out) { exponential_loop(words, n, rate, out); }     \
  NEURON_CLONES void open_unit(const uint32_t* words, size_t n, T* out) { open_unit_loop(words, n, out); }                       \
  NEURON_CLONES void dropout(const uint32_t* words, size_t n, uint64_t threshold, T scale, const T* in, T* out, uint8_t* mask) { \
    dropout_loop(words, n, threshold, scale, in, out, mask);                                                                     \
  }
NEURON_INSTANCES(float)
NEURON_INSTANCES(double)
#undef NEURON_INSTANCES

NEURON_CLONES void bernoulli(const uint32_t* __restrict words, size_t n, uint64_t threshold, uint8_t* __restrict out) {
  const uint32_t last = uint32_t(threshold - 1);
  const uint8_t any = threshold != 0;
  for (size_t i = 0; i < n; ++i) out[i] = uint8_t(words[i] <= last) & any;
}

NEURON_CLONES void integers(const uint32_t* __restrict words, size_t n, uint64_t range, int64_t base, int64_t* __restrict out) {
  if (range == 0) {
    for (size_t i = 0; i < n; ++i) out[i] = int64_t(bits_of(words, i, double{}) + uint64_t(base));
  } else if (range >> 32 == 0) {
    for (size_t i = 0; i < n; ++i) {  // the high half of a 64 x 32 bit product, in vector-sized pieces
      const uint64_t high = (range * words[2 * i + 1] + (range * words[2 * i] >> 32)) >> 32;
      out[i] = int64_t(high + uint64_t(base));
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      const auto product = static_cast<unsigned __int128>(bits_of(words, i, double{})) * range;
      out[i] = int64_t(uint64_t(product >> 64) + uint64_t(base));
    }
  }
}

}  // namespace neuron::random

// Philox4x32-10 against the vectors published with Random123, and the tile functions against their definitions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "csrc/aten/philox.h"
#include "csrc/aten/random_tiles.h"
#include "tests/cpp/check.h"

using namespace neuron;

// The published vectors are checked by the compiler.
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
static_assert(RandomStream{0, 0}.word(2) == 0xbc57ac4c);
static_assert(RandomStream{7, 8}.word(1) == RandomStream{7, 0}.word(9));

TEST(philox_words_are_the_stream) {
  // A counter that carries into its second word, an offset that is not 0, and a seed that uses all 64 bits.
  const RandomStream stream{0x0123456789abcdef, (uint64_t{1} << 34) - 64};
  std::vector<uint32_t> words(256);
  random::fill_words(stream, 64, words.data(), words.size());
  for (size_t j = 0; j < words.size(); ++j) CHECK_EQ(words[j], stream.word(64 + j));
}

namespace {

/// Distance of `got` from the exact value in units of its last place.
template <class T>
double ulps(T got, long double exact) {
  const T rounded = static_cast<T>(exact);
  const T gap = std::nextafter(std::abs(rounded), std::numeric_limits<T>::infinity()) - std::abs(rounded);
  return double(std::abs((static_cast<long double>(got) - exact) / gap));
}

template <class T>
void transforms_are_accurate() {
  constexpr size_t n = 1 << 16;
  constexpr size_t per_element = sizeof(T) / 4;
  constexpr long double scale = sizeof(T) == 4 ? 0x1p-32L : 0x1p-64L;
  const RandomStream stream{42, 0};
  std::vector<uint32_t> words(n * per_element);
  random::fill_words(stream, 0, words.data(), words.size());
  std::vector<T> unit(n), normal(n), exponential(n);
  random::open_unit(words.data(), n, unit.data());
  random::normal(words.data(), n, T(0), T(1), normal.data());
  random::exponential(words.data(), n, T(1), exponential.data());
  double worst_log = 0, worst_normal = 0;
  for (size_t k = 0; k < n / 2; ++k) {
    CHECK(unit[k] > 0 && unit[k] < 1);
    worst_log = std::max(worst_log, ulps<T>(exponential[k], -std::log(static_cast<long double>(unit[k]))));
    const long double turn = sizeof(T) == 4 ? stream.word(2 * k + 1) * scale : stream.word64(2 * k + 1) * scale;
    const long double radius = std::sqrt(-2 * std::log(static_cast<long double>(unit[2 * k])));
    const long double angle = 2 * std::numbers::pi_v<long double> * turn;
    // Near a zero of the sine an ulp of the result is far below an ulp of the angle; measure against the radius there.
    for (int branch = 0; branch < 2; ++branch) {
      const long double exact = radius * (branch ? std::sin(angle) : std::cos(angle));
      if (std::abs(exact) > radius / 8) worst_normal = std::max(worst_normal, ulps<T>(normal[2 * k + branch], exact));
    }
  }
  CHECK(worst_log < 2.5);
  CHECK(worst_normal < 4);
}

}  // namespace

TEST(philox_transforms_are_accurate) {
  transforms_are_accurate<float>();
  transforms_are_accurate<double>();
}

TEST(philox_choices_follow_the_threshold) {
  const std::vector<uint32_t> words{0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  std::vector<uint8_t> out(words.size());
  random::bernoulli(words.data(), words.size(), random::threshold(0), out.data());
  CHECK((std::count(out.begin(), out.end(), 0) == 6));
  random::bernoulli(words.data(), words.size(), random::threshold(1), out.data());
  CHECK((std::count(out.begin(), out.end(), 1) == 6));
  random::bernoulli(words.data(), words.size(), random::threshold(0.5), out.data());
  CHECK((out == std::vector<uint8_t>{1, 1, 1, 0, 0, 0}));
}

TEST(philox_integers_cover_their_range) {
  const std::vector<uint32_t> words{0, 0, 0xffffffff, 0xffffffff, 0, 0x80000000};
  std::vector<int64_t> out(3);
  random::integers(words.data(), 3, 10, -5, out.data());
  CHECK((out == std::vector<int64_t>{-5, 4, 0}));
  random::integers(words.data(), 3, uint64_t{1} << 40, 0, out.data());
  CHECK((out == std::vector<int64_t>{0, (int64_t{1} << 40) - 1, int64_t{1} << 39}));
  random::integers(words.data(), 3, 0, 0, out.data());
  CHECK((out == std::vector<int64_t>{0, -1, std::numeric_limits<int64_t>::min()}));
}

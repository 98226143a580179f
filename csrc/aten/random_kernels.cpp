// The CPU kernels of neuron::philox_*: what a random op of the device computes, given (seed, offset). See Note [Random stream].
//
// Every op takes its seed and offset (and whatever else changes from call to call) as Scalars, so that eager's cache does not key on them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/_standard_gamma.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/binomial.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nextafter.h>
#include <ATen/ops/poisson.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <tuple>
#include <vector>

#include "csrc/aten/random_tiles.h"

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;
using random::tile_size;

RandomStream stream_of(const Scalar& seed, const Scalar& offset) {
  return {static_cast<uint64_t>(seed.toLong()), static_cast<uint64_t>(offset.toLong())};
}

/// Calls fn(first element, elements, words) for each tile of `numel` elements; words are there for elements rounded up to a granule.
template <class Fn>
void for_each_tile(int64_t numel, size_t words_per_element, const RandomStream& stream, Fn fn) {
  const int64_t tiles = (numel + int64_t{tile_size} - 1) / int64_t{tile_size};
  at::parallel_for(0, tiles, 32, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[2 * tile_size];
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * int64_t{tile_size};
      const size_t count = std::min<size_t>(tile_size, numel - first);
      random::fill_words(stream, first * words_per_element, words, random::round_up(count) * words_per_element);
      fn(first, count, words);
    }
  });
}

/// Calls fn with a contiguous tensor to fill, so that element indices are logical ones whatever the strides of `self`.
template <class Fn>
Tensor& fill_in_order(Tensor& self, Fn fn) {
  if (self.is_contiguous()) {
    fn(self);
  } else {
    const Tensor ordered = at::empty(self.sizes(), self.options());
    fn(ordered);
    self.copy_(ordered);
  }
  return self;
}

/// Fills `self` with what draw(words, n, buffer) writes: n values of type `Drawn`, each made of `words_per_element` words.
template <class Drawn, class Scalar, class Draw>
void fill_from(const Tensor& self, size_t words_per_element, const RandomStream& stream, Draw draw) {
  Scalar* data = self.mutable_data_ptr<Scalar>();
  for_each_tile(self.numel(), words_per_element, stream, [&](int64_t first, size_t count, const uint32_t* words) {
    alignas(64) Drawn buffer[tile_size];
    draw(words, random::round_up(count), buffer);
    std::transform(buffer, buffer + count, data + first, [](Drawn value) { return static_cast<Scalar>(value); });
  });
}

/// Real numbers: drawn in double for float64, else in float and rounded. `draw` is generic in the type of its buffer.
template <class Draw>
Tensor& fill_reals(const char* name, Tensor& self, const RandomStream& stream, Draw draw) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", name, "\" not implemented for '", toString(self.scalar_type()),
                              "'");
  return fill_in_order(self, [&](const Tensor& out) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "random real", [&] {
      using Real = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
      fill_from<Real, scalar_t>(out, sizeof(Real) / sizeof(uint32_t), stream, draw);
    });
  });
}

#define NEURON_DISPATCH_DRAWN(type, name, ...)                                                                                            \
  AT_DISPATCH_V2(type, name, AT_WRAP(__VA_ARGS__), AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, \
                 at::kBFloat16)

// ---- Real distributions ----

Tensor& uniform_(Tensor& self, const Scalar& from, const Scalar& to, const Scalar& seed, const Scalar& offset) {
  const int digits = self.scalar_type() == at::kHalf       ? 11
                     : self.scalar_type() == at::kBFloat16 ? 8
                     : self.scalar_type() == at::kDouble   ? 53
                                                           : 24;
  return fill_reals("uniform", self, stream_of(seed, offset), [&]<class T>(const uint32_t* words, size_t n, T* out) {
    random::uniform(words, n, from.to<T>(), to.to<T>(), digits, out);
  });
}

Tensor& normal_(Tensor& self, const Scalar& mean, const Scalar& std, const Scalar& seed, const Scalar& offset) {
  return fill_reals("normal", self, stream_of(seed, offset),
                    [&]<class T>(const uint32_t* words, size_t n, T* out) { random::normal(words, n, mean.to<T>(), std.to<T>(), out); });
}

Tensor& log_normal_(Tensor& self, const Scalar& mean, const Scalar& std, const Scalar& seed, const Scalar& offset) {
  return fill_reals("log_normal", self, stream_of(seed, offset), [&]<class T>(const uint32_t* words, size_t n, T* out) {
    random::normal(words, n, mean.to<T>(), std.to<T>(), out);
    std::transform(out, out + n, out, [](T x) { return std::exp(x); });
  });
}

Tensor& exponential_(Tensor& self, const Scalar& rate, const Scalar& seed, const Scalar& offset) {
  return fill_reals("exponential", self, stream_of(seed, offset),
                    [&]<class T>(const uint32_t* words, size_t n, T* out) { random::exponential(words, n, rate.to<T>(), out); });
}

Tensor& cauchy_(Tensor& self, const Scalar& median, const Scalar& sigma, const Scalar& seed, const Scalar& offset) {
  return fill_reals("cauchy", self, stream_of(seed, offset), [&]<class T>(const uint32_t* words, size_t n, T* out) {
    random::open_unit(words, n, out);
    const T m = median.to<T>(), s = sigma.to<T>(), pi = std::numbers::pi_v<T>;
    std::transform(out, out + n, out, [=](T u) { return m + s * std::tan(pi * (u - T(0.5))); });
  });
}

// ---- Whole numbers ----

/// ceil(log(u) / log(1 - p)), in double whatever the type of `self`.
Tensor& geometric_(Tensor& self, const Scalar& p, const Scalar& seed, const Scalar& offset) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.scalar_type() != at::kBool, "\"geometric_\" not implemented for 'Bool'");
  const double rate = -std::log1p(-p.toDouble());
  return fill_in_order(self, [&](const Tensor& out) {
    NEURON_DISPATCH_DRAWN(out.scalar_type(), "geometric", [&] {
      fill_from<double, scalar_t>(out, 2, stream_of(seed, offset), [&](const uint32_t* words, size_t n, double* buffer) {
        random::exponential(words, n, rate, buffer);
        std::transform(buffer, buffer + n, buffer, [](double x) { return std::ceil(x); });
      });
    });
  });
}

/// base + [0, range); the bits of `range` are a uint64, 0 for 2^64.
Tensor& random_(Tensor& self, const Scalar& range, const Scalar& base, const Scalar& seed, const Scalar& offset) {
  return fill_in_order(self, [&](const Tensor& out) {
    NEURON_DISPATCH_DRAWN(out.scalar_type(), "random", [&] {
      fill_from<int64_t, scalar_t>(out, 2, stream_of(seed, offset), [&](const uint32_t* words, size_t n, int64_t* buffer) {
        random::integers(words, n, static_cast<uint64_t>(range.toLong()), base.toLong(), buffer);
      });
    });
  });
}

// ---- Choices ----

Tensor& bernoulli_(Tensor& self, const Scalar& p, const Scalar& seed, const Scalar& offset) {
  return fill_in_order(self, [&](const Tensor& out) {
    NEURON_DISPATCH_DRAWN(out.scalar_type(), "bernoulli_scalar", [&] {
      fill_from<uint8_t, scalar_t>(out, 1, stream_of(seed, offset), [&](const uint32_t* words, size_t n, uint8_t* buffer) {
        random::bernoulli(words, n, random::threshold(p.toDouble()), buffer);
      });
    });
  });
}

/// One probability an element; `p` broadcasts to `self`.
Tensor& bernoulli_tensor_(Tensor& self, const Tensor& p, const Scalar& seed, const Scalar& offset) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(p.scalar_type()), "\"bernoulli_tensor_p_\" not implemented for '",
                              toString(p.scalar_type()), "'");
  if (self.numel() == 0) return self;
  const Tensor wide = p.to(at::kDouble);
  const auto [low, high] = at::aminmax(wide);
  const bool in_range = low.item<double>() >= 0 && high.item<double>() <= 1;
  TORCH_CHECK(in_range,
              "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  (A probability of bernoulli lies outside [0, 1], or is NaN.)");
  const Tensor expanded = wide.expand(self.sizes()).contiguous();
  const double* chance = expanded.const_data_ptr<double>();
  return fill_in_order(self, [&](const Tensor& out) {
    NEURON_DISPATCH_DRAWN(out.scalar_type(), "bernoulli_tensor", [&] {
      scalar_t* data = out.mutable_data_ptr<scalar_t>();
      for_each_tile(out.numel(), 1, stream_of(seed, offset), [&](int64_t first, size_t count, const uint32_t* words) {
        for (size_t i = 0; i < count; ++i) data[first + i] = static_cast<scalar_t>(words[i] < random::threshold(chance[first + i]));
      });
    });
  });
}

/// Dropout of a contiguous tensor in one pass.
template <class T>
void dropout_tiles(const Tensor& input, const Tensor& output, const Tensor& mask, double keep, double scale, const RandomStream& stream) {
  using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const T* in = input.const_data_ptr<T>();
  T* out = output.mutable_data_ptr<T>();
  auto* kept = reinterpret_cast<uint8_t*>(mask.mutable_data_ptr<bool>());
  const uint64_t threshold = random::threshold(keep);
  for_each_tile(input.numel(), 1, stream, [&](int64_t first, size_t count, const uint32_t* words) {
    if constexpr (std::is_same_v<T, Real>) {
      random::dropout(words, count, threshold, Real(scale), in + first, out + first, kept + first);
    } else {
      alignas(64) Real wide_in[tile_size], wide_out[tile_size];
      std::copy_n(in + first, count, wide_in);
      random::dropout(words, count, threshold, Real(scale), wide_in, wide_out, kept + first);
      std::transform(wide_out, wide_out + count, out + first, [](Real value) { return static_cast<T>(value); });
    }
  });
}

/// (input * mask / (1 - p), mask), both with the strides that empty_like(input) has.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, const Scalar& p, const Scalar& seed, const Scalar& offset) {
  const double keep = 1 - p.toDouble();
  const double scale = keep == 0 ? 0 : 1 / keep;
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (!at::isFloatingType(input.scalar_type())) {
    bernoulli_(mask, keep, seed, offset);
    return {input.mul(mask).mul_(scale), mask};
  }
  Tensor output = at::empty_like(input);
  const Tensor in = input.contiguous();
  const bool direct = output.is_contiguous();
  const Tensor out = direct ? output : at::empty(input.sizes(), input.options());
  const Tensor kept = direct ? mask : at::empty(input.sizes(), mask.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "native_dropout",
                                  [&] { dropout_tiles<scalar_t>(in, out, kept, keep, scale, stream_of(seed, offset)); });
  if (!direct) {
    output.copy_(out);
    mask.copy_(kept);
  }
  return {output, mask};
}

// ---- Permutations and samples ----

struct KeyedIndex {
  uint64_t key;
  int64_t index;
  auto operator<=>(const KeyedIndex&) const = default;
};

/// Sorts by key, then index. The keys are uniform, so one pass into buckets of about 16 by their top bits leaves little to do.
void sort_uniform(std::vector<KeyedIndex>& items) {
  const int bits = std::max(0, int(std::bit_width(items.size())) - 4);
  if (bits == 0) return std::sort(items.begin(), items.end());
  const auto bucket = [shift = 64 - bits](const KeyedIndex& item) { return item.key >> shift; };
  std::vector<size_t> start((size_t{1} << bits) + 1);
  for (const auto& item : items) ++start[bucket(item) + 1];
  for (size_t b = 1; b < start.size(); ++b) start[b] += start[b - 1];
  std::vector<KeyedIndex> sorted(items.size());
  std::vector<size_t> next(start.begin(), start.end() - 1);
  for (const auto& item : items) sorted[next[bucket(item)]++] = item;
  for (size_t b = 0; b + 1 < start.size(); ++b) std::sort(sorted.begin() + start[b], sorted.begin() + start[b + 1]);
  items.swap(sorted);
}

/// The order of numel() random 64-bit keys.
Tensor& randperm_(Tensor& self, const Scalar& seed, const Scalar& offset) {
  std::vector<KeyedIndex> items(self.numel());
  for_each_tile(self.numel(), 2, stream_of(seed, offset), [&](int64_t first, size_t count, const uint32_t* words) {
    for (size_t i = 0; i < count; ++i) items[first + i] = {words[2 * i] | uint64_t{words[2 * i + 1]} << 32, first + int64_t(i)};
  });
  sort_uniform(items);
  return fill_in_order(self, [&](const Tensor& out) {
    NEURON_DISPATCH_DRAWN(out.scalar_type(), "randperm", [&] {
      std::transform(items.begin(), items.end(), out.mutable_data_ptr<scalar_t>(),
                     [](const KeyedIndex& i) { return static_cast<scalar_t>(i.index); });
    });
  });
}

void check_probabilities(const Tensor& weights) {
  const auto [low, high] = at::aminmax(weights);
  const bool valid = low.item<double>() >= 0 && high.item<double>() < std::numeric_limits<double>::infinity();
  TORCH_CHECK(valid, "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(weights.sum(-1).gt(0).all().item<bool>(), "invalid multinomial distribution (sum of probabilities <= 0)");
}

/// Rows of `self` are weights. With replacement: inversion of the running sum. Without: the largest weight / exponential win.
Tensor multinomial(const Tensor& self, int64_t samples, bool replacement, const Scalar& seed, const Scalar& offset) {
  check_probabilities(self);
  if (!replacement || samples == 1) {
    Tensor race = at::empty(self.sizes(), self.options().dtype(self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    exponential_(race, 1, seed, offset);
    race = self.to(race.scalar_type()).div(race);
    return samples == 1 ? race.argmax(-1, /*keepdim=*/true) : std::get<1>(race.topk(samples, -1));
  }
  const Tensor sums = self.to(at::kDouble).cumsum(-1);
  const Tensor total = sums.narrow(-1, sums.size(-1) - 1, 1);
  auto sizes = self.sizes().vec();
  sizes.back() = samples;
  Tensor points = at::empty(sizes, sums.options());
  uniform_(points, 0, 1, seed, offset);
  // Below the total even after rounding, so that the last positive weight is the last one drawn.
  points.mul_(total).clamp_max_(at::nextafter(total, at::zeros_like(total)));
  return at::searchsorted(sums.contiguous(), points, /*out_int32=*/false, /*right=*/true);
}

// ---- Everything else: PyTorch's own CPU kernel, with a generator of its own that the first word of the call seeds ----

at::Generator cpu_generator(const Scalar& seed, const Scalar& offset) {
  return at::detail::createCPUGenerator(stream_of(seed, offset).word64(0));
}

Tensor poisson(const Tensor& self, const Scalar& seed, const Scalar& offset) { return at::poisson(self, cpu_generator(seed, offset)); }

Tensor binomial(const Tensor& count, const Tensor& prob, const Scalar& seed, const Scalar& offset) {
  return at::binomial(count, prob, cpu_generator(seed, offset));
}

Tensor standard_gamma(const Tensor& self, const Scalar& seed, const Scalar& offset) {
  return at::_standard_gamma(self, cpu_generator(seed, offset));
}

Tensor sample_dirichlet(const Tensor& self, const Scalar& seed, const Scalar& offset) {
  return at::_sample_dirichlet(self, cpu_generator(seed, offset));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(neuron, m) {
  m.def("philox_uniform_(Tensor(a!) self, Scalar from, Scalar to, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_normal_(Tensor(a!) self, Scalar mean, Scalar std, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_log_normal_(Tensor(a!) self, Scalar mean, Scalar std, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_exponential_(Tensor(a!) self, Scalar rate, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_cauchy_(Tensor(a!) self, Scalar median, Scalar sigma, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_geometric_(Tensor(a!) self, Scalar p, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_random_(Tensor(a!) self, Scalar range, Scalar base, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_bernoulli_(Tensor(a!) self, Scalar p, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_bernoulli_.Tensor(Tensor(a!) self, Tensor p, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_dropout(Tensor input, Scalar p, Scalar seed, Scalar offset) -> (Tensor, Tensor)");
  m.def("philox_randperm_(Tensor(a!) self, Scalar seed, Scalar offset) -> Tensor(a!)");
  m.def("philox_multinomial(Tensor self, int num_samples, bool replacement, Scalar seed, Scalar offset) -> Tensor");
  m.def("philox_poisson(Tensor self, Scalar seed, Scalar offset) -> Tensor");
  m.def("philox_binomial(Tensor count, Tensor prob, Scalar seed, Scalar offset) -> Tensor");
  m.def("philox_standard_gamma(Tensor self, Scalar seed, Scalar offset) -> Tensor");
  m.def("philox_sample_dirichlet(Tensor self, Scalar seed, Scalar offset) -> Tensor");
}

TORCH_LIBRARY_IMPL(neuron, CPU, m) {
  m.impl("philox_uniform_", TORCH_FN(uniform_));
  m.impl("philox_normal_", TORCH_FN(normal_));
  m.impl("philox_log_normal_", TORCH_FN(log_normal_));
  m.impl("philox_exponential_", TORCH_FN(exponential_));
  m.impl("philox_cauchy_", TORCH_FN(cauchy_));
  m.impl("philox_geometric_", TORCH_FN(geometric_));
  m.impl("philox_random_", TORCH_FN(random_));
  m.impl("philox_bernoulli_", TORCH_FN(bernoulli_));
  m.impl("philox_bernoulli_.Tensor", TORCH_FN(bernoulli_tensor_));
  m.impl("philox_dropout", TORCH_FN(dropout));
  m.impl("philox_randperm_", TORCH_FN(randperm_));
  m.impl("philox_multinomial", TORCH_FN(multinomial));
  m.impl("philox_poisson", TORCH_FN(poisson));
  m.impl("philox_binomial", TORCH_FN(binomial));
  m.impl("philox_standard_gamma", TORCH_FN(standard_gamma));
  m.impl("philox_sample_dirichlet", TORCH_FN(sample_dirichlet));
}

}  // namespace neuron

// Operations on whole rows: ATen's vectors, in the order of PyTorch's kernels for the last dimension. A row is folded into one vector, from
// the first to the last, and its lanes at the end; a tail is a masked load of the same function.
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "csrc/runtime/emulated/kernels/parts.h"

namespace neuron::tiles::NEURON_VECTORS {
namespace {

template <class T>
using Vec = at::vec::Vectorized<T>;

/// Calls each(i, n) for the vectors of a row: n elements from i on, which is the width for all but the last.
template <class T, class Each>
void vectors(int64_t row, Each each) {
  constexpr int64_t width = Vec<T>::size();
  int64_t i = 0;
  for (; i + width <= row; i += width) each(i, width);
  if (i < row) each(i, row - i);
}

/// Joins make(i, n) over the vectors of a row, as at::vec::reduce_all does.
template <class T, class Make, class Join>
T fold(int64_t row, Make make, Join join) {
  constexpr int64_t width = Vec<T>::size();
  if (row < width) return at::vec::vec_reduce_all<T>(join, make(0, row), row);
  Vec<T> all = make(0, width);
  int64_t i = width;
  for (; i + width <= row; i += width) all = join(all, make(i, width));
  if (i < row) all = Vec<T>::set(all, join(all, make(i, row - i)), row - i);
  return at::vec::vec_reduce_all<T>(join, all);
}

/// How the lanes of folds are joined.
struct Sum {
  template <class V>
  V operator()(const V& a, const V& b) const {
    return a + b;
  }
};
struct Most {
  template <class V>
  V operator()(const V& a, const V& b) const {
    return at::vec::maximum(a, b);
  }
};

template <class T>
Vec<T> load(const T* from, int64_t count) {
  return count == Vec<T>::size() ? Vec<T>::loadu(from) : Vec<T>::loadu(from, count);
}

template <class T>
void store(const Vec<T>& value, T* to, int64_t count) {
  if (count == Vec<T>::size())
    value.store(to);
  else
    value.store(to, static_cast<int>(count));
}

/// The logarithm, and before and after it rounded to the type in memory, as PyTorch's kernel keeps the sums of rows.
template <class T>
T log_of(T x, TileFunction round) {
  T lanes[Vec<T>::size()];
  auto rounded = [&](T value) {
    if (round != nullptr) round({&value, {&value, nullptr, nullptr}, 1, nullptr});
    return value;
  };
  Vec<T>(rounded(x)).log().store(lanes);
  return rounded(lanes[0]);
}

template <class T>
struct Row {
  T* out;
  const T *a, *b;
  int64_t size;
  TileFunction round;
};

template <class T>
Vec<T> most_of(const Row<T>& row) {
  return Vec<T>(fold<T>(row.size, [&](int64_t i, int64_t n) { return load(row.a + i, n); }, Most()));
}

template <class T>
void softmax(const Row<T>& row) {
  const auto most = most_of(row);
  auto weigh = [&](int64_t i, int64_t n) {
    const auto e = (load(row.a + i, n) - most).exp();  // exp_u20() makes a number of a NaN
    store(e, row.out + i, n);
    return e;
  };
  const Vec<T> scale(T(1) / fold<T>(row.size, weigh, Sum()));
  vectors<T>(row.size, [&](int64_t i, int64_t n) { store(load(row.out + i, n) * scale, row.out + i, n); });
}

template <class T>
void log_softmax(const Row<T>& row) {
  const auto most = most_of(row);
  const T sum = fold<T>(row.size, [&](int64_t i, int64_t n) { return (load(row.a + i, n) - most).exp(); }, Sum());
  const Vec<T> logarithm(log_of(sum, row.round));
  vectors<T>(row.size, [&](int64_t i, int64_t n) { store(load(row.a + i, n) - most - logarithm, row.out + i, n); });
}

/// a: the gradient, b: the result.
template <class T>
void softmax_backward(const Row<T>& row) {
  const Vec<T> sum(fold<T>(row.size, [&](int64_t i, int64_t n) { return load(row.a + i, n) * load(row.b + i, n); }, Sum()));
  vectors<T>(row.size, [&](int64_t i, int64_t n) { store((load(row.a + i, n) - sum) * load(row.b + i, n), row.out + i, n); });
}

template <class T>
void log_softmax_backward(const Row<T>& row) {
  const T sum = fold<T>(row.size, [&](int64_t i, int64_t n) { return load(row.a + i, n); }, Sum());
  const Vec<T> less(-sum);
  vectors<T>(row.size,
             [&](int64_t i, int64_t n) { store(at::vec::fmadd(load(row.b + i, n).exp(), less, load(row.a + i, n)), row.out + i, n); });
}

// ---- Moments: a chunk of vectors at a time by Welford's method, the chunks joined in pairs, pairs of pairs and so on. In vectors of 32
// bytes with every instruction set, as PyTorch's kernel has it on processors with AVX-512 too. ----

template <class T>
struct Lanes {
  static constexpr int64_t width = 32 / sizeof(T);
  typedef T V __attribute__((vector_size(32)));
  V v = {};

  Lanes() = default;
  explicit Lanes(const V& value) : v(value) {}
  static Lanes at(const T* from) {
    Lanes lanes;
    std::memcpy(&lanes.v, from, sizeof lanes.v);
    return lanes;
  }
  friend Lanes operator+(const Lanes& a, const Lanes& b) { return Lanes(a.v + b.v); }
  friend Lanes operator-(const Lanes& a, const Lanes& b) { return Lanes(a.v - b.v); }
  friend Lanes operator*(const Lanes& a, T b) { return Lanes(a.v * b); }
};

/// a b + c, rounded once where the processor can.
template <class T>
Lanes<T> fused(const Lanes<T>& a, const Lanes<T>& b, const Lanes<T>& c) {
#if defined(__FMA__)
  if constexpr (sizeof(T) == 4)
    return Lanes<T>(_mm256_fmadd_ps(a.v, b.v, c.v));
  else
    return Lanes<T>(_mm256_fmadd_pd(a.v, b.v, c.v));
#else
  return Lanes<T>(a.v * b.v + c.v);
#endif
}
template <class T>
T fused(T a, T b, T c) {
#if defined(__FMA__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// T(part) / T(all), 0 of nothing.
template <class T>
T share(int64_t part, int64_t all) {
  return all == 0 ? T(0) : static_cast<T>(part) / static_cast<T>(all);
}

template <class T>
struct Moments {
  int64_t count = 0;       // of each lane
  Lanes<T> mean, squares;  // sum of squared deviations

  void add(const Moments& other) {
    const auto delta = other.mean - mean, step = delta * share<T>(other.count, count + other.count);
    squares = fused(delta * static_cast<T>(count), step, squares + other.squares);
    mean = mean + step;
    count += other.count;
  }
};

constexpr int64_t kChunk = 16;  // vectors

template <class T>
struct Shares {
  Lanes<T> of[kChunk];
  Shares() {
    for (int64_t i = 0; i < kChunk; ++i) of[i].v += share<T>(1, i + 1);
  }
};

/// Of `count` vectors, `apart` vectors from one another.
template <class T>
Moments<T> moments_of_chunk(const T* x, int64_t count, int64_t apart, const Shares<T>& shares) {
  Moments<T> moments;
  moments.count = count;
  for (int64_t j = 0; j < count; ++j) {
    const auto value = Lanes<T>::at(x + j * apart * Lanes<T>::width), delta = value - moments.mean;
    moments.mean = fused(shares.of[j], delta, moments.mean);
    moments.squares = fused(delta, value - moments.mean, moments.squares);
  }
  return moments;
}

/// Of the part of a row that fills vectors. A vector of a narrow type is `apart` = 2 of ours.
template <class T>
Moments<T> moments_of_vectors(const T* x, int64_t vectors, int64_t apart, const Shares<T>& shares) {
  const int64_t chunks = (vectors + kChunk - 1) / kChunk;
  Moments<T> levels[64];
  int depth = 0;
  while ((int64_t{1} << depth) < chunks) ++depth;
  for (int64_t i = 0; i < chunks; ++i) {
    for (int64_t k = 0; k < apart; ++k) {
      const T* first = x + (i * kChunk * apart + k) * Lanes<T>::width;
      levels[0].add(moments_of_chunk(first, std::min(kChunk, vectors - i * kChunk), apart, shares));
    }
    for (int level = 1; level < depth && ((i + 1) >> (level - 1) & 1) == 0; ++level) {
      levels[level].add(levels[level - 1]);
      levels[level - 1] = {};
    }
  }
  for (int level = 1; level < depth; ++level) levels[0].add(levels[level]);
  return levels[0];
}

/// Mean and 1 / sqrt(variance + epsilon).
template <class T>
void moments_of_row(T* pair, const T* x, int64_t row, int64_t apart, T epsilon, const Shares<T>& shares) {
  constexpr int64_t width = Lanes<T>::width;
  const int64_t vectors = row / (apart * width);
  const auto most = moments_of_vectors(x, vectors, apart, shares);
  T mean = 0, squares = 0;
  int64_t count = 0;
  for (int64_t i = vectors * apart * width; i < row; ++i) {
    const T delta = x[i] - mean;
    mean += delta / static_cast<T>(++count);
    squares = fused(delta, x[i] - mean, squares);
  }
  for (int64_t lane = 0; lane < width; ++lane) {
    const T part = share<T>(most.count, count + most.count), delta = most.mean.v[lane] - mean;
    squares += fused(delta * delta * part, static_cast<T>(count), most.squares.v[lane]);
    mean = fused(part, delta, mean);
    count += most.count;
  }
  pair[0] = mean;
  pair[1] = T(1) / std::sqrt(squares / static_cast<T>(row) + epsilon);
}

template <class T>
void moments(const TileArgs& args) {
  auto* pairs = static_cast<T*>(args.out);
  const auto* x = static_cast<const T*>(args.in[0]);
  const T epsilon = number<T>(args.numbers[0]);
  const Shares<T> shares;
  for (int64_t i = 0; i < args.count; i += args.row, pairs += 2)
    moments_of_row(pairs, x + i, args.row, args.round == nullptr ? 1 : 2, epsilon, shares);
}

template <class T>
void normalize(const TileArgs& args) {
  auto* out = static_cast<T*>(args.out);
  const auto *x = static_cast<const T*>(args.in[0]), *pairs = static_cast<const T*>(args.in[1]), *bias = static_cast<const T*>(args.in[2]);
  for (int64_t first = 0; first < args.count; first += args.row, pairs += 2) {
    const Vec<T> mean(pairs[0]), scale(pairs[1]), moved(-pairs[0] * pairs[1]);
    vectors<T>(args.row, [&](int64_t i, int64_t n) {
      const auto value = load(x + first + i, n), delta = value - mean;
      const auto shift = bias == nullptr ? Vec<T>(T(0)) : load(bias + i, n);
      if (args.round != nullptr)
        store(at::vec::fmadd(value, scale, moved) + shift, out + first + i, n);
      else
        store(at::vec::fmadd(delta, scale, shift), out + first + i, n);
    });
  }
}

template <class T>
void affine(const TileArgs& args) {
  auto* out = static_cast<T*>(args.out);
  const auto *x = static_cast<const T*>(args.in[0]), *weight = static_cast<const T*>(args.in[1]), *bias = static_cast<const T*>(args.in[2]);
  for (int64_t first = 0; first < args.count; first += args.row) {
    vectors<T>(args.row, [&](int64_t i, int64_t n) {
      const Vec<T> shift = bias == nullptr ? Vec<T>(T(0)) : load(bias + i, n);
      store(at::vec::fmadd(load(x + first + i, n), load(weight + i, n), shift), out + first + i, n);
    });
  }
}

template <class T, int of_pair>
void of_pairs(const TileArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) static_cast<T*>(args.out)[i] = static_cast<const T*>(args.in[0])[2 * i + of_pair];
}

/// Row by row. A row may be made where an operand of it lies.
template <class T, void (*function)(const Row<T>&)>
void rows(const TileArgs& args) {
  auto* out = static_cast<T*>(args.out);
  const auto* a = static_cast<const T*>(args.in[0]);
  const auto* b = static_cast<const T*>(args.in[1]);
  for (int64_t i = 0; i < args.count; i += args.row) function({out + i, a + i, b == nullptr ? nullptr : b + i, args.row, args.round});
}

}  // namespace

void install_rows(Library& library) {
#define NEURON_ROWS(name)                                    \
  set<float>(library, Op::name, &rows<float, &name<float>>); \
  set<double>(library, Op::name, &rows<double, &name<double>>);
  NEURON_ROWS(softmax)
  NEURON_ROWS(log_softmax)
  NEURON_ROWS(softmax_backward)
  NEURON_ROWS(log_softmax_backward)
#undef NEURON_ROWS
#define NEURON_NORM(name, function)                \
  set<float>(library, Op::name, &function<float>); \
  set<double>(library, Op::name, &function<double>);
  NEURON_NORM(moments, moments)
  NEURON_NORM(normalize, normalize)
  NEURON_NORM(affine, affine)
#undef NEURON_NORM
  set<float>(library, Op::mean_of, &of_pairs<float, 0>);
  set<double>(library, Op::mean_of, &of_pairs<double, 0>);
  set<float>(library, Op::rstd_of, &of_pairs<float, 1>);
  set<double>(library, Op::rstd_of, &of_pairs<double, 1>);
}

}  // namespace neuron::tiles::NEURON_VECTORS

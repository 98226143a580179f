// Operations on whole rows: ATen's vectors, in the order of PyTorch's kernels for the last dimension. A row is folded into one vector, from
// the first to the last, and its lanes at the end; a tail is a masked load of the same function.
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

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
  vectors<T>(row.size, [&](int64_t i, int64_t n) {
    store(at::vec::fmadd(load(row.b + i, n).exp(), less, load(row.a + i, n)), row.out + i, n);
  });
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
}

}  // namespace neuron::tiles::NEURON_VECTORS

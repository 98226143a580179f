// Operations without transcendental functions: plain loops, which the compiler vectorises.
#include <cmath>
#include <cstdlib>

#include "csrc/runtime/emulated/kernels/parts.h"

namespace neuron::tiles::NEURON_VECTORS {
namespace {

/// Runs formula F (made from the numbers, then called with elements) over a tile of R.
template <class T, class R, class F, int arity>
void loop(const TileArgs& args) {
  const F f(args.numbers);
  const int64_t count = args.count;
  auto* out = static_cast<R*>(args.out);
  const auto* a = static_cast<const T*>(args.in[0]);
  const auto* b = static_cast<const T*>(args.in[1]);
  const auto* c = static_cast<const T*>(args.in[2]);
  NEURON_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (arity == 1)
      out[i] = f(a[i]);
    else if constexpr (arity == 2)
      out[i] = f(a[i], b[i]);
    else
      out[i] = f(a[i], b[i], c[i]);
  }
}

// ---- Formulas. NEURON_FORMULA(name, arity, expression in a, b, c and numbers p0, p1) ----

template <class T>
struct Numbers {
  T p0{}, p1{}, p2{};
  explicit Numbers(const Number* numbers) {
    if (numbers == nullptr) return;
    p0 = number<T>(numbers[0]);
    p1 = number<T>(numbers[1]);
    p2 = number<T>(numbers[2]);
  }
};

#define NEURON_FORMULA_1(name, expression)                     \
  template <class T>                                           \
  struct name : Numbers<T> {                                   \
    using Numbers<T>::Numbers, Numbers<T>::p0, Numbers<T>::p1; \
    static constexpr int arity = 1;                            \
    auto operator()(T a) const { return expression; }          \
  };
#define NEURON_FORMULA_2(name, expression)                     \
  template <class T>                                           \
  struct name : Numbers<T> {                                   \
    using Numbers<T>::Numbers, Numbers<T>::p0, Numbers<T>::p1; \
    static constexpr int arity = 2;                            \
    auto operator()(T a, T b) const { return expression; }     \
  };
#define NEURON_FORMULA_3(name, expression)                      \
  template <class T>                                            \
  struct name : Numbers<T> {                                    \
    using Numbers<T>::Numbers, Numbers<T>::p0, Numbers<T>::p1;  \
    static constexpr int arity = 3;                             \
    auto operator()(T a, T b, T c) const { return expression; } \
  };

// Written so that GCC turns them into vector selects; a NaN in b fails the comparison, and b is it.
template <class T>
T larger(T a, T b) {
  const T r = a > b ? a : b;
  return a != a ? a : r;
}
template <class T>
T smaller(T a, T b) {
  const T r = a < b ? a : b;
  return a != a ? a : r;
}
/// a b + c, rounded once where ATen's kernels do so.
template <class T>
T fused(T a, T b, T c) {
  if constexpr (KindOf<T>::value == Kind::i64)
    return a * b + c;
  else
    return std::fma(a, b, c);
}
template <class T>
T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}
template <class T>
T bounded(T a, T low, T high) {
  return smaller(larger(a, low), high);
}

// clang-format off
NEURON_FORMULA_1(Identity, a)
NEURON_FORMULA_2(AddPlain, static_cast<T>(a + b))
NEURON_FORMULA_2(AddScaled, fused(p0, b, a))
NEURON_FORMULA_2(SubPlain, static_cast<T>(a - b))
NEURON_FORMULA_2(SubScaled, fused(static_cast<T>(-p0), b, a))
NEURON_FORMULA_2(Mul, static_cast<T>(a * b))
NEURON_FORMULA_2(Div, a / b)
NEURON_FORMULA_1(Neg, static_cast<T>(-a))
NEURON_FORMULA_1(Abs, std::abs(a))
NEURON_FORMULA_1(Reciprocal, T(1) / a)
NEURON_FORMULA_1(Sqrt, std::sqrt(a))
NEURON_FORMULA_1(Rsqrt, T(1) / std::sqrt(a))
NEURON_FORMULA_1(Sign, static_cast<T>((a > T(0)) - (a < T(0))))
NEURON_FORMULA_1(Floor, std::floor(a))
NEURON_FORMULA_1(Ceil, std::ceil(a))
NEURON_FORMULA_1(Trunc, std::trunc(a))
NEURON_FORMULA_1(Round, std::nearbyint(a))
NEURON_FORMULA_2(Maximum, larger(a, b))
NEURON_FORMULA_2(Minimum, smaller(a, b))
NEURON_FORMULA_3(Clamp, bounded(a, b, c))
NEURON_FORMULA_2(Eq, uint8_t(a == b))
NEURON_FORMULA_2(Ne, uint8_t(a != b))
NEURON_FORMULA_2(Lt, uint8_t(a < b))
NEURON_FORMULA_2(Le, uint8_t(a <= b))
NEURON_FORMULA_2(Gt, uint8_t(a > b))
NEURON_FORMULA_2(Ge, uint8_t(a >= b))
NEURON_FORMULA_1(IsNan, uint8_t(a != a))
NEURON_FORMULA_2(BitAnd, static_cast<T>(a& b))
NEURON_FORMULA_2(BitOr, static_cast<T>(a | b))
NEURON_FORMULA_2(BitXor, static_cast<T>(a ^ b))
NEURON_FORMULA_1(BitNot, static_cast<T>(~a))
NEURON_FORMULA_1(LogicalNot, static_cast<T>(a ^ 1))
NEURON_FORMULA_3(Lerp, select<T>(std::abs(c) < T(0.5), fused(c, b - a, a), fused(c - T(1), b - a, b)))
NEURON_FORMULA_3(Addcmul, fused(static_cast<T>(p0 * b), c, a))
NEURON_FORMULA_3(Addcdiv, a + p0 * b / c)
NEURON_FORMULA_1(Relu, larger(a, T(0)))
NEURON_FORMULA_1(Threshold, a <= p0 ? p1 : a)
NEURON_FORMULA_2(ThresholdBackward, b <= p0 ? T(0) : a)
NEURON_FORMULA_1(LeakyRelu, select<T>(a > T(0), a, a * p0))
NEURON_FORMULA_2(LeakyReluBackward, select<T>(b > T(0), a, a * p0))
NEURON_FORMULA_2(HardtanhBackward, select<T>((b > p0) & (b < p1), a, T(0)))
NEURON_FORMULA_1(Hardsigmoid, bounded(a + T(3), T(0), T(6)) / T(6))
NEURON_FORMULA_2(HardsigmoidBackward, ((b > T(-3)) & (b < T(3))) ? a * (T(1) / T(6)) : T(0))
NEURON_FORMULA_1(Hardswish, a * bounded(a + T(3), T(0), T(6)) / T(6))
NEURON_FORMULA_2(HardswishBackward, select<T>(b <= T(-3), T(0), select<T>(b >= T(3), a, a * (b / T(3) + T(0.5)))))
NEURON_FORMULA_2(SigmoidBackward, a * (T(1) - b) * b)
NEURON_FORMULA_2(TanhBackward, a * fused(static_cast<T>(-b), b, T(1)))
// clang-format on

/// a + p0 b, as a + b where p0 is 1 (the same value, one multiplication less).
template <class T, class Plain, class Scaled>
void scaled(const TileArgs& args) {
  if (number<T>(args.numbers[0]) == T(1)) return loop<T, T, Plain, 2>(args);
  loop<T, T, Scaled, 2>(args);
}

template <class T>
void where(const TileArgs& args) {
  const int64_t count = args.count;
  auto* out = static_cast<T*>(args.out);
  const auto* condition = static_cast<const uint8_t*>(args.in[0]);
  const auto* a = static_cast<const T*>(args.in[1]);
  const auto* b = static_cast<const T*>(args.in[2]);
  NEURON_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const T yes = a[i], no = b[i];  // read both: a select, not a branch
    out[i] = condition[i] ? yes : no;
  }
}

template <template <class> class F, class T>
constexpr TileFunction function() {
  constexpr int arity = F<T>::arity;
  if constexpr (arity == 1)
    return &loop<T, decltype(F<T>(nullptr)(T())), F<T>, 1>;
  else if constexpr (arity == 2)
    return &loop<T, decltype(F<T>(nullptr)(T(), T())), F<T>, 2>;
  else
    return &loop<T, decltype(F<T>(nullptr)(T(), T(), T())), F<T>, 3>;
}

template <template <class> class F, class... T>
void put(Library& library, Op op) {
  (set<T>(library, op, function<F, T>()), ...);
}

template <template <class> class F>
void put_real(Library& library, Op op) {
  put<F, float, double>(library, op);
}

template <template <class> class F>
void put_numbers(Library& library, Op op) {
  put<F, float, double, int64_t>(library, op);
}

template <class T>
void put_scaled(Library& library) {
  set<T>(library, Op::add, &scaled<T, AddPlain<T>, AddScaled<T>>);
  set<T>(library, Op::sub, &scaled<T, SubPlain<T>, SubScaled<T>>);
}

}  // namespace

void install_functions(Library& library) {
  put<Identity, float, double, int64_t, uint8_t>(library, Op::identity);
  set<float>(library, Op::where, &where<float>);
  set<double>(library, Op::where, &where<double>);
  set<int64_t>(library, Op::where, &where<int64_t>);
  set<uint8_t>(library, Op::where, &where<uint8_t>);
  put_scaled<float>(library);
  put_scaled<double>(library);
  put_scaled<int64_t>(library);

  put_numbers<Mul>(library, Op::mul);
  put_numbers<Neg>(library, Op::neg);
  put_numbers<Abs>(library, Op::abs);
  put_numbers<Sign>(library, Op::sign);
  put_numbers<Maximum>(library, Op::maximum);
  put_numbers<Minimum>(library, Op::minimum);
  put_numbers<Clamp>(library, Op::clamp);
  put_numbers<Relu>(library, Op::relu);
  put_numbers<Eq>(library, Op::eq);
  put_numbers<Ne>(library, Op::ne);
  put_numbers<Lt>(library, Op::lt);
  put_numbers<Le>(library, Op::le);
  put_numbers<Gt>(library, Op::gt);
  put_numbers<Ge>(library, Op::ge);
  put_numbers<Addcmul>(library, Op::addcmul);
  put_numbers<Threshold>(library, Op::threshold);
  put_numbers<ThresholdBackward>(library, Op::threshold_backward);

  put<BitAnd, int64_t, uint8_t>(library, Op::bit_and);
  put<BitOr, int64_t, uint8_t>(library, Op::bit_or);
  put<BitXor, int64_t, uint8_t>(library, Op::bit_xor);
  put<BitNot, int64_t>(library, Op::bit_not);
  put<LogicalNot, uint8_t>(library, Op::bit_not);

  put_real<Div>(library, Op::div);
  put_real<Reciprocal>(library, Op::reciprocal);
  put_real<Sqrt>(library, Op::sqrt);
  put_real<Rsqrt>(library, Op::rsqrt);
  put_real<Floor>(library, Op::floor);
  put_real<Ceil>(library, Op::ceil);
  put_real<Trunc>(library, Op::trunc);
  put_real<Round>(library, Op::round);
  put_real<IsNan>(library, Op::isnan);
  put_real<Lerp>(library, Op::lerp);
  put_real<Addcdiv>(library, Op::addcdiv);
  put_real<LeakyRelu>(library, Op::leaky_relu);
  put_real<LeakyReluBackward>(library, Op::leaky_relu_backward);
  put_real<HardtanhBackward>(library, Op::hardtanh_backward);
  put_real<Hardsigmoid>(library, Op::hardsigmoid);
  put_real<HardsigmoidBackward>(library, Op::hardsigmoid_backward);
  put_real<Hardswish>(library, Op::hardswish);
  put_real<HardswishBackward>(library, Op::hardswish_backward);
  put_real<SigmoidBackward>(library, Op::sigmoid_backward);
  put_real<TanhBackward>(library, Op::tanh_backward);
}

}  // namespace neuron::tiles::NEURON_VECTORS

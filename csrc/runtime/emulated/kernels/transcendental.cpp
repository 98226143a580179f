// Operations with transcendental functions: ATen's vectors, whose functions are Sleef's (in libtorch_cpu). A tail is a masked load of the
// same function.
#include <ATen/cpu/vec/vec.h>

#include <numbers>
#include <type_traits>

#include "csrc/runtime/emulated/kernels/parts.h"

namespace neuron::tiles::NEURON_VECTORS {
namespace {

template <class T>
using Vec = at::vec::Vectorized<T>;

template <class T, class F, int arity>
void loop(const TileArgs& args) {
  const F f(args.numbers);
  constexpr int64_t width = Vec<T>::size();
  auto* out = static_cast<T*>(args.out);
  const auto* a = static_cast<const T*>(args.in[0]);
  const auto* b = static_cast<const T*>(args.in[1]);
  int64_t i = 0;
  for (; i + width <= args.count; i += width) {
    if constexpr (arity == 1)
      f(Vec<T>::loadu(a + i)).store(out + i);
    else
      f(Vec<T>::loadu(a + i), Vec<T>::loadu(b + i)).store(out + i);
  }
  if (const int64_t rest = args.count - i) {
    if constexpr (arity == 1)
      f(Vec<T>::loadu(a + i, rest)).store(out + i, static_cast<int>(rest));
    else
      f(Vec<T>::loadu(a + i, rest), Vec<T>::loadu(b + i, rest)).store(out + i, static_cast<int>(rest));
  }
}

template <class T>
struct Numbers {
  using V = Vec<T>;
  T p0{}, p1{}, p2{};
  explicit Numbers(const Number* numbers) {
    if (numbers == nullptr) return;
    p0 = number<T>(numbers[0]);
    p1 = number<T>(numbers[1]);
    p2 = number<T>(numbers[2]);
  }
  /// A constant in every lane.
  static V all(double value) { return V(static_cast<T>(value)); }
  static V if_else(const V& condition, const V& yes, const V& no) { return V::blendv(no, yes, condition); }
};

template <class T>
Vec<T> sigmoid_of(const Vec<T>& a) {
  return Vec<T>(T(1)) / (Vec<T>(T(1)) + a.neg().exp());
}

#define NEURON_FORMULA_1(name, expression)                                                                           \
  template <class T>                                                                                                 \
  struct name : Numbers<T> {                                                                                         \
    using Numbers<T>::Numbers, Numbers<T>::p0, Numbers<T>::p1, Numbers<T>::p2, Numbers<T>::all, Numbers<T>::if_else; \
    static constexpr int arity = 1;                                                                                  \
    Vec<T> operator()(const Vec<T>& a) const { return expression; }                                                  \
  };
#define NEURON_FORMULA_2(name, expression)                                                                           \
  template <class T>                                                                                                 \
  struct name : Numbers<T> {                                                                                         \
    using Numbers<T>::Numbers, Numbers<T>::p0, Numbers<T>::p1, Numbers<T>::p2, Numbers<T>::all, Numbers<T>::if_else; \
    static constexpr int arity = 2;                                                                                  \
    Vec<T> operator()(const Vec<T>& a, const Vec<T>& b) const { return expression; }                                 \
  };

#define NEURON_FUNCTIONS(_) \
  _(exp)                    \
  _(exp2)                   \
  _(expm1)                  \
  _(log)                    \
  _(log1p) _(log2) _(log10) _(sin) _(cos) _(tan) _(asin) _(acos) _(atan) _(tanh) _(atanh) _(erf) _(erfc)
#define NEURON_FUNCTION(name) NEURON_FORMULA_1(F_##name, a.name())
NEURON_FUNCTIONS(NEURON_FUNCTION)

// Sleef's asinh and acosh square their argument, its sinh and cosh overflow before their result does: far out the leading term is all.
constexpr double kFar = 1 << 28;  // 1 / (4 x^2) is nothing beside log(2 x)
template <class T>
constexpr double kSteep = std::is_same_v<T, float> ? 88 : 709;  // exp(-x) is nothing beside exp(x)
template <class T>
Vec<T> log_twice(const Vec<T>& a) {
  return a.log() + Vec<T>(static_cast<T>(std::numbers::ln2));
}
template <class T>
Vec<T> half_exp(const Vec<T>& a) {
  const auto root = (a * Vec<T>(T(0.5))).exp();
  return root * Vec<T>(T(0.5)) * root;
}

// clang-format off
NEURON_FORMULA_1(Asinh, if_else(a.abs() > all(kFar), log_twice(a.abs()).copysign(a), a.asinh()))
NEURON_FORMULA_1(Acosh, if_else(a > all(kFar), log_twice(a), a.acosh()))
NEURON_FORMULA_1(Sinh, if_else(a.abs() > all(kSteep<T>), half_exp(a.abs()).copysign(a), a.sinh()))
NEURON_FORMULA_1(Cosh, if_else(a.abs() > all(kSteep<T>), half_exp(a.abs()), a.cosh()))
NEURON_FORMULA_1(Sigmoid, sigmoid_of(a))
NEURON_FORMULA_1(Silu, a / (all(1) + a.neg().exp()))
NEURON_FORMULA_1(Gelu, a * all(0.5) * (all(1) + (a * all(std::numbers::sqrt2 / 2)).erf()))
NEURON_FORMULA_1(Mish, a * a.exp().log1p().tanh())
NEURON_FORMULA_1(Softplus, if_else(a * all(p0) > all(p1), a, (a * all(p0)).exp().log1p() / all(p0)))
NEURON_FORMULA_1(Elu, if_else(a < all(0), (a * all(p2)).expm1() * all(p0 * p1), a * all(p1)))
NEURON_FORMULA_2(Atan2, a.atan2(b))
NEURON_FORMULA_2(Pow, a.pow(b))
// clang-format on

constexpr double kGeluBeta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kGeluKappa = 0.044715;

template <class T>
struct GeluTanh : Numbers<T> {
  using Numbers<T>::Numbers, Numbers<T>::all;
  static constexpr int arity = 1;
  Vec<T> operator()(const Vec<T>& a) const {
    const auto inner = all(kGeluBeta) * (a + all(kGeluKappa) * (a * a * a));
    return all(0.5) * a * (all(1) + inner.tanh());
  }
};

template <class T>
struct SiluBackward : Numbers<T> {
  using Numbers<T>::Numbers, Numbers<T>::all;
  static constexpr int arity = 2;
  Vec<T> operator()(const Vec<T>& gradient, const Vec<T>& x) const {
    const auto s = sigmoid_of(x);
    return gradient * s * (all(1) + x * (all(1) - s));
  }
};

template <class T>
struct GeluBackward : Numbers<T> {
  using Numbers<T>::Numbers, Numbers<T>::all;
  static constexpr int arity = 2;
  Vec<T> operator()(const Vec<T>& gradient, const Vec<T>& x) const {
    const auto cdf = all(0.5) * (all(1) + (x * all(std::numbers::sqrt2 / 2)).erf());
    const auto pdf = (all(-0.5) * x * x).exp() * all(std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2);
    return gradient * (cdf + x * pdf);
  }
};

template <class T>
struct GeluTanhBackward : Numbers<T> {
  using Numbers<T>::Numbers, Numbers<T>::all;
  static constexpr int arity = 2;
  Vec<T> operator()(const Vec<T>& gradient, const Vec<T>& x) const {
    const auto square = x * x;
    const auto t = (all(kGeluBeta) * (x + all(kGeluKappa) * (square * x))).tanh();
    const auto left = all(0.5) * (all(1) + t);
    const auto slope = all(kGeluBeta) * (all(1) + all(3 * kGeluKappa) * square);
    return gradient * (left + all(0.5) * x * (all(1) - t * t) * slope);
  }
};

template <class T>
struct MishBackward : Numbers<T> {
  using Numbers<T>::Numbers, Numbers<T>::all;
  static constexpr int arity = 2;
  Vec<T> operator()(const Vec<T>& gradient, const Vec<T>& x) const {
    const auto t = x.exp().log1p().tanh();
    return gradient * (t + x * sigmoid_of(x) * (all(1) - t * t));
  }
};

template <class T>
struct SoftplusBackward : Numbers<T> {
  using Numbers<T>::Numbers, Numbers<T>::all, Numbers<T>::if_else, Numbers<T>::p0, Numbers<T>::p1;
  static constexpr int arity = 2;
  Vec<T> operator()(const Vec<T>& gradient, const Vec<T>& x) const {
    const auto scaled = x * all(p0);
    const auto z = scaled.exp();
    return if_else(scaled > all(p1), gradient, gradient * z / (z + all(1)));
  }
};

// clang-format off
NEURON_FORMULA_2(EluBackward, if_else(b > all(0), a * all(p1), a * all(p2) * all(p0 * p1) * (b * all(p2)).exp()))
NEURON_FORMULA_2(EluBackwardResult, if_else(b > all(0), a * all(p1), a * all(p2) * (b + all(p0 * p1))))
// clang-format on

/// a ^ p0; the exponents that PyTorch takes apart are exact here as well.
template <class T>
void pow_number(const TileArgs& args) {
  const T exponent = number<T>(args.numbers[0]);
  auto each = [&](auto f) {
    const int64_t count = args.count;
    auto* out = static_cast<T*>(args.out);
    const auto* a = static_cast<const T*>(args.in[0]);
    NEURON_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) out[i] = f(a[i]);
  };
  if (exponent == T(2)) return each([](T a) { return a * a; });
  if (exponent == T(3)) return each([](T a) { return a * a * a; });
  if (exponent == T(1)) return each([](T a) { return a; });
  if (exponent == T(0)) return each([](T) { return T(1); });
  if (exponent == T(0.5)) return each([](T a) { return std::sqrt(a); });
  if (exponent == T(-0.5)) return each([](T a) { return T(1) / std::sqrt(a); });
  if (exponent == T(-1)) return each([](T a) { return T(1) / a; });
  if (exponent == T(-2)) return each([](T a) { return T(1) / (a * a); });
  struct F {
    Vec<T> exponent;
    explicit F(const Number* numbers) : exponent(number<T>(numbers[0])) {}
    Vec<T> operator()(const Vec<T>& a) const { return a.pow(exponent); }
  };
  loop<T, F, 1>(args);
}

template <template <class> class F>
void put(Library& library, Op op) {
  set<float>(library, op, &loop<float, F<float>, F<float>::arity>);
  set<double>(library, op, &loop<double, F<double>, F<double>::arity>);
}

}  // namespace

void install_transcendental(Library& library) {
#define NEURON_PUT(name) put<F_##name>(library, Op::name);
  NEURON_FUNCTIONS(NEURON_PUT)
#undef NEURON_PUT
  put<Asinh>(library, Op::asinh);
  put<Acosh>(library, Op::acosh);
  put<Sinh>(library, Op::sinh);
  put<Cosh>(library, Op::cosh);
  put<Sigmoid>(library, Op::sigmoid);
  put<Silu>(library, Op::silu);
  put<Gelu>(library, Op::gelu);
  put<GeluTanh>(library, Op::gelu_tanh);
  put<Mish>(library, Op::mish);
  put<Softplus>(library, Op::softplus);
  put<Elu>(library, Op::elu);
  put<Atan2>(library, Op::atan2);
  put<Pow>(library, Op::pow);
  set<float>(library, Op::pow_number, &pow_number<float>);
  set<double>(library, Op::pow_number, &pow_number<double>);
  put<SiluBackward>(library, Op::silu_backward);
  put<GeluBackward>(library, Op::gelu_backward);
  put<GeluTanhBackward>(library, Op::gelu_tanh_backward);
  put<MishBackward>(library, Op::mish_backward);
  put<SoftplusBackward>(library, Op::softplus_backward);
  put<EluBackward>(library, Op::elu_backward);
  put<EluBackwardResult>(library, Op::elu_backward_result);
}

}  // namespace neuron::tiles::NEURON_VECTORS

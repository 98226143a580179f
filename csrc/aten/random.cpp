// Random ops of the device: ATen's signatures and checks on PrivateUse1, over neuron::philox_* (random_kernels.cpp).
//
// Each kernel checks its arguments as PyTorch does, takes words from the generator, and calls a neuron::philox_* op, which the front end
// queues like any other. The default generator of the CPU is never touched. The other overloads that PyTorch tags nondeterministic_seeded
// are composites of these (rand, randn_like, dropout...), and must stay so.
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "csrc/aten/generator.h"

namespace neuron {
namespace {

using at::Generator;
using at::Scalar;
using at::Tensor;
using OptionalGenerator = std::optional<Generator>;
namespace templates = at::native::templates;

/// neuron::philox_<name>, found at the first call. The last two arguments of each are the words it may use.
template <class Signature>
class PhiloxOp;

template <class Result, class... Args>
class PhiloxOp<Result(Args...)> {
 public:
  explicit PhiloxOp(const char* name, const char* overload = "")
      : handle_(c10::Dispatcher::singleton()
                    .findSchemaOrThrow(("neuron::philox_" + std::string(name)).c_str(), overload)
                    .typed<Result(Args..., const Scalar&, const Scalar&)>()) {}

  /// Runs on the device of `self`, with `words` words of the generator.
  Result operator()(const OptionalGenerator& generator, const Tensor& self, int64_t words, Args... args) const {
    const auto [seed, offset] = generator_or_default(generator, self.device().index())->reserve(static_cast<uint64_t>(words));
    const Scalar seed_bits(static_cast<int64_t>(seed)), offset_bits(static_cast<int64_t>(offset));
    return handle_.redispatch(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), args..., seed_bits, offset_bits);
  }

 private:
  c10::TypedOperatorHandle<Result(Args..., const Scalar&, const Scalar&)> handle_;
};

/// Words of a real distribution: float64 takes two an element.
int64_t real_words(const Tensor& self) { return self.numel() * (self.scalar_type() == at::kDouble ? 2 : 1); }

Tensor output_of(const at::TensorIteratorBase& iter) { return iter.tensor(0); }

// ---- What at::native's templates call once they have checked the arguments. The parameter is theirs; it does not matter here. ----

template <class>
struct Uniform {
  void operator()(at::TensorIteratorBase& iter, double from, double to, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&, const Scalar&)> op("uniform_");
    Tensor self = output_of(iter);
    op(generator, self, real_words(self), self, from, to);
  }
};

template <class>
struct Normal {
  void operator()(const Tensor& output, double mean, double std, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&, const Scalar&)> op("normal_");
    Tensor self = output;
    op(generator, self, real_words(self), self, mean, std);
  }
};

template <class>
struct LogNormal {
  void operator()(at::TensorIteratorBase& iter, double mean, double std, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&, const Scalar&)> op("log_normal_");
    Tensor self = output_of(iter);
    op(generator, self, real_words(self), self, mean, std);
  }
};

template <class>
struct Cauchy {
  void operator()(at::TensorIteratorBase& iter, double median, double sigma, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&, const Scalar&)> op("cauchy_");
    Tensor self = output_of(iter);
    op(generator, self, real_words(self), self, median, sigma);
  }
};

template <class>
struct Exponential {
  void operator()(at::TensorIteratorBase& iter, double rate, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&)> op("exponential_");
    Tensor self = output_of(iter);
    op(generator, self, real_words(self), self, rate);
  }
};

template <class>
struct Geometric {
  void operator()(at::TensorIteratorBase& iter, double p, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&)> op("geometric_");
    Tensor self = output_of(iter);
    op(generator, self, 2 * self.numel(), self, p);
  }
};

template <class>
struct Bernoulli {
  void operator()(Tensor& self, double p, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&)> op("bernoulli_");
    op(generator, self, self.numel(), self, p);
  }
  void operator()(Tensor& self, const Tensor& p, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Tensor&)> op("bernoulli_", "Tensor");
    const auto expanded = at::expand_inplace(self, p.device() == self.device() ? p : p.to(self.device()));
    op(generator, self, self.numel(), self, *expanded);
  }
};

template <class>
struct Integers {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t base, const OptionalGenerator& generator) const {
    static const PhiloxOp<Tensor&(Tensor&, const Scalar&, const Scalar&)> op("random_");
    Tensor self = output_of(iter);
    op(generator, self, 2 * self.numel(), self, static_cast<int64_t>(range), base);
  }
  /// All 2^64 values.
  void operator()(at::TensorIteratorBase& iter, const OptionalGenerator& generator) const { (*this)(iter, 0, 0, generator); }
};

/// random_() without bounds: what the dtype holds exactly, from 0 on.
template <class RNG>
struct IntegersOfType {
  void operator()(at::TensorIteratorBase& iter, const OptionalGenerator& generator) const {
    uint64_t largest = 1;
    AT_DISPATCH_V2(iter.dtype(), "random", AT_WRAP([&] {
                     if constexpr (std::is_same_v<scalar_t, bool>) {
                       largest = 1;
                     } else if constexpr (std::is_integral_v<scalar_t>) {
                       largest = static_cast<uint64_t>(std::numeric_limits<scalar_t>::max());
                     } else {
                       largest = uint64_t{1} << std::numeric_limits<scalar_t>::digits;
                     }
                   }),
                   AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
    Integers<RNG>()(iter, largest + 1, 0, generator);
  }
};

// ---- In place ----

using RNG = NeuronGenerator;

Tensor& uniform_(Tensor& self, double from, double to, OptionalGenerator generator) {
  return templates::uniform_impl_<Uniform, RNG>(self, from, to, std::move(generator));
}
Tensor& normal_(Tensor& self, double mean, double std, OptionalGenerator generator) {
  return templates::normal_impl_<Normal, RNG>(self, mean, std, std::move(generator));
}
Tensor& log_normal_(Tensor& self, double mean, double std, OptionalGenerator generator) {
  return templates::log_normal_impl_<LogNormal, RNG>(self, mean, std, std::move(generator));
}
Tensor& cauchy_(Tensor& self, double median, double sigma, OptionalGenerator generator) {
  return templates::cauchy_impl_<Cauchy, RNG>(self, median, sigma, std::move(generator));
}
Tensor& exponential_(Tensor& self, double rate, OptionalGenerator generator) {
  return templates::exponential_impl_<Exponential, RNG>(self, rate, std::move(generator));
}
Tensor& geometric_(Tensor& self, double p, OptionalGenerator generator) {
  return templates::geometric_impl_<Geometric, RNG>(self, p, std::move(generator));
}
Tensor& random_(Tensor& self, OptionalGenerator generator) {
  return templates::random_impl<IntegersOfType, RNG>(self, std::move(generator));
}
Tensor& random_from_(Tensor& self, int64_t from, std::optional<int64_t> to, OptionalGenerator generator) {
  return templates::random_from_to_impl<Integers, RNG>(self, from, to, std::move(generator));
}
Tensor& random_to_(Tensor& self, int64_t to, OptionalGenerator generator) { return random_from_(self, 0, to, std::move(generator)); }
Tensor& bernoulli_float_(Tensor& self, double p, OptionalGenerator generator) {
  return templates::bernoulli_impl_<Bernoulli, RNG>(self, p, std::move(generator));
}
Tensor& bernoulli_tensor_(Tensor& self, const Tensor& p, OptionalGenerator generator) {
  return templates::bernoulli_impl_<Bernoulli, RNG>(self, p, std::move(generator));
}

// ---- Functional and out= ----

Tensor& bernoulli_out(const Tensor& self, OptionalGenerator generator, Tensor& out) {
  return templates::bernoulli_out_impl<Bernoulli, RNG>(out, self, std::move(generator));
}

/// normal() in its three forms: the mean, the standard deviation or both are tensors.
Tensor normal_tensor_float(const Tensor& mean, double std, OptionalGenerator generator) {
  return templates::normal_impl<Normal, RNG>(mean, std, std::move(generator));
}
Tensor& normal_tensor_float_out(const Tensor& mean, double std, OptionalGenerator generator, Tensor& out) {
  return templates::normal_out_impl<Normal, RNG>(out, mean, std, std::move(generator));
}
Tensor normal_float_tensor(double mean, const Tensor& std, OptionalGenerator generator) {
  return templates::normal_impl<Normal, RNG>(mean, std, std::move(generator));
}
Tensor& normal_float_tensor_out(double mean, const Tensor& std, OptionalGenerator generator, Tensor& out) {
  return templates::normal_out_impl<Normal, RNG>(out, mean, std, std::move(generator));
}
Tensor normal_tensor_tensor(const Tensor& mean, const Tensor& std, OptionalGenerator generator) {
  return templates::normal_impl<Normal, RNG>(mean, std, std::move(generator));
}
Tensor& normal_tensor_tensor_out(const Tensor& mean, const Tensor& std, OptionalGenerator generator, Tensor& out) {
  return templates::normal_out_impl<Normal, RNG>(out, mean, std, std::move(generator));
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  static const PhiloxOp<std::tuple<Tensor, Tensor>(const Tensor&, const Scalar&)> op("dropout");
  if (input.numel() == 0) return {input, at::empty_like(input, input.options())};
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  return op({}, input, input.numel(), input, p);
}

Tensor& randperm_out(int64_t n, OptionalGenerator generator, Tensor& out) {
  static const PhiloxOp<Tensor&(Tensor&)> op("randperm_");
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  TORCH_CHECK(!generator || out.device() == generator->device(), "Expected a '", out.device(), "' generator device but found '",
              generator->device(), "'");
  at::native::check_supported_max_int_with_precision(n, out);
  out.resize_({n});
  return n == 0 ? out : op(generator, out, 2 * n, out);
}

Tensor multinomial(const Tensor& self, int64_t samples, bool replacement, OptionalGenerator generator) {
  static const PhiloxOp<Tensor(const Tensor&, int64_t, bool)> op("multinomial");
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || samples <= self.size(-1), "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(self.size(-1) <= int64_t{1} << 24, "number of categories cannot exceed 2^24");
  const int64_t rows = self.dim() == 1 ? 1 : self.size(0);
  if (self.numel() == 0) {
    const auto options = self.options().dtype(at::kLong);
    return self.dim() == 1 ? at::empty({samples}, options) : at::empty({rows, samples}, options);
  }
  const int64_t words = replacement && samples > 1 ? 2 * rows * samples : real_words(self);
  return op(generator, self, words, self, samples, replacement);
}
Tensor& multinomial_out(const Tensor& self, int64_t samples, bool replacement, OptionalGenerator generator, Tensor& out) {
  TORCH_CHECK(out.device() == self.device(), "multinomial arguments must have the same device");
  TORCH_CHECK(out.scalar_type() == at::kLong, "multinomial expects Long tensor out, got: ", out.scalar_type());
  const Tensor drawn = neuron::multinomial(self, samples, replacement, std::move(generator));
  at::native::resize_output(out, drawn.sizes());
  return out.copy_(drawn);
}

/// One block of words is enough for the seed of the CPU kernel's own generator.
constexpr int64_t seed_words = 4;

Tensor poisson(const Tensor& self, OptionalGenerator generator) {
  static const PhiloxOp<Tensor(const Tensor&)> op("poisson");
  return op(generator, self, seed_words, self);
}
Tensor binomial(const Tensor& count, const Tensor& prob, OptionalGenerator generator) {
  static const PhiloxOp<Tensor(const Tensor&, const Tensor&)> op("binomial");
  return op(generator, count, seed_words, count, prob);
}
Tensor standard_gamma(const Tensor& self, OptionalGenerator generator) {
  static const PhiloxOp<Tensor(const Tensor&)> op("standard_gamma");
  return op(generator, self, seed_words, self);
}
Tensor sample_dirichlet(const Tensor& self, OptionalGenerator generator) {
  static const PhiloxOp<Tensor(const Tensor&)> op("sample_dirichlet");
  return op(generator, self, seed_words, self);
}

/// Leaky ReLU whose slope, drawn for each element that is not positive, lands in `noise` (1 elsewhere). The result is contiguous whatever
/// the strides of `self`, as on the CPU.
Tensor rrelu_with_noise(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                        OptionalGenerator generator) {
  TORCH_CHECK(self.sym_sizes() == noise.sym_sizes(), "noise tensor shape must match self tensor shape. Got self.shape = ", self.sym_sizes(),
              " noise.shape = ", noise.sym_sizes());
  if (!training) return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2).contiguous();
  uniform_(noise, lower.toDouble(), upper.toDouble(), std::move(generator));
  noise.masked_fill_(self.gt(0), 1);
  return self.mul(noise).contiguous();
}
Tensor& rrelu_with_noise_(Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                          OptionalGenerator generator) {
  return self.copy_(neuron::rrelu_with_noise(self, noise, lower, upper, training, std::move(generator)));
}
Tensor& rrelu_with_noise_out(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                             OptionalGenerator generator, Tensor& out) {
  const Tensor result = neuron::rrelu_with_noise(self, noise, lower, upper, training, std::move(generator));
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("uniform_", TORCH_FN(uniform_));
  m.impl("normal_", TORCH_FN(normal_));
  m.impl("normal.Tensor_float", TORCH_FN(normal_tensor_float));
  m.impl("normal.float_Tensor", TORCH_FN(normal_float_tensor));
  m.impl("normal.Tensor_Tensor", TORCH_FN(normal_tensor_tensor));
  m.impl("normal.Tensor_float_out", TORCH_FN(normal_tensor_float_out));
  m.impl("normal.float_Tensor_out", TORCH_FN(normal_float_tensor_out));
  m.impl("normal.Tensor_Tensor_out", TORCH_FN(normal_tensor_tensor_out));
  m.impl("log_normal_", TORCH_FN(log_normal_));
  m.impl("cauchy_", TORCH_FN(cauchy_));
  m.impl("exponential_", TORCH_FN(exponential_));
  m.impl("geometric_", TORCH_FN(geometric_));
  m.impl("random_", TORCH_FN(random_));
  m.impl("random_.from", TORCH_FN(random_from_));
  m.impl("random_.to", TORCH_FN(random_to_));
  m.impl("bernoulli_.float", TORCH_FN(bernoulli_float_));
  m.impl("bernoulli_.Tensor", TORCH_FN(bernoulli_tensor_));
  m.impl("bernoulli.out", TORCH_FN(bernoulli_out));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("randperm.generator_out", TORCH_FN(randperm_out));
  m.impl("multinomial", TORCH_FN(multinomial));
  m.impl("multinomial.out", TORCH_FN(multinomial_out));
  m.impl("poisson", TORCH_FN(poisson));
  m.impl("binomial", TORCH_FN(binomial));
  m.impl("_standard_gamma", TORCH_FN(standard_gamma));
  m.impl("_sample_dirichlet", TORCH_FN(sample_dirichlet));
  m.impl("rrelu_with_noise", TORCH_FN(rrelu_with_noise));
  m.impl("rrelu_with_noise_", TORCH_FN(rrelu_with_noise_));
  m.impl("rrelu_with_noise.out", TORCH_FN(rrelu_with_noise_out));
}

}  // namespace neuron

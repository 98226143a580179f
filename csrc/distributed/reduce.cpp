#include "csrc/distributed/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <complex>
#include <type_traits>

namespace neuron::distributed {
namespace {

template <class T>
struct Facts {
  using Accumulator = T;
};
template <>
struct Facts<c10::Half> {
  using Accumulator = float;
};
template <>
struct Facts<c10::BFloat16> {
  using Accumulator = float;
};

template <class T>
constexpr bool is_complex = false;
template <class T>
constexpr bool is_complex<std::complex<T>> = true;

constexpr size_t kBlock = 2048;  // elements: the accumulators stay in L1

template <Reduction R, class A>
inline A apply(A a, A b) {
  if constexpr (R == Reduction::product && std::is_integral_v<A>) {
    using Wide = std::common_type_t<unsigned, std::make_unsigned_t<A>>;  // wraps, as kernels do
    return static_cast<A>(static_cast<Wide>(a) * static_cast<Wide>(b));
  } else if constexpr (R == Reduction::product) {
    return a * b;
  } else if constexpr (R == Reduction::minimum) {
    return a != a ? a : (b < a || b != b) ? b : a;
  } else if constexpr (R == Reduction::maximum) {
    return a != a ? a : (b > a || b != b) ? b : a;
  } else if constexpr (R == Reduction::bit_and) {
    return a & b;
  } else if constexpr (R == Reduction::bit_or) {
    return a | b;
  } else if constexpr (R == Reduction::bit_xor) {
    return a ^ b;
  } else if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) + static_cast<std::make_unsigned_t<A>>(b));
  } else {
    return a + b;
  }
}

template <class A>
inline A scaled(A value, double factor) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<double>(value) * factor);
  } else {
    return value * static_cast<A>(factor);
  }
}

template <Reduction R, class T>
void run(const void* const* inputs, const double* factors, int count, void* out, size_t elements) {
  using A = typename Facts<T>::Accumulator;
  A sums[kBlock];
  for (size_t at = 0; at < elements; at += kBlock) {
    const size_t n = std::min(kBlock, elements - at);
    for (int k = 0; k < count; ++k) {
      const T* from = static_cast<const T*>(inputs[k]) + at;
      if constexpr (R == Reduction::premul_sum) {
        const double factor = factors[k];
        if (k == 0) {
          for (size_t i = 0; i < n; ++i) sums[i] = scaled(static_cast<A>(from[i]), factor);
        } else {
          for (size_t i = 0; i < n; ++i) sums[i] = apply<R>(sums[i], scaled(static_cast<A>(from[i]), factor));
        }
      } else if (k == 0) {
        for (size_t i = 0; i < n; ++i) sums[i] = static_cast<A>(from[i]);
      } else {
        for (size_t i = 0; i < n; ++i) sums[i] = apply<R>(sums[i], static_cast<A>(from[i]));
      }
    }
    T* to = static_cast<T*>(out) + at;
    if constexpr (R == Reduction::average) {
      const auto divisor = static_cast<A>(count);
      for (size_t i = 0; i < n; ++i) to[i] = static_cast<T>(sums[i] / divisor);
    } else {
      for (size_t i = 0; i < n; ++i) to[i] = static_cast<T>(sums[i]);
    }
  }
}

using Function = void (*)(const void* const*, const double*, int, void*, size_t);

template <class T>
Function find(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return run<Reduction::sum, T>;
    case Reduction::average:
      return run<Reduction::average, T>;
    case Reduction::premul_sum:
      return run<Reduction::premul_sum, T>;
    case Reduction::product:
      return run<Reduction::product, T>;
    case Reduction::minimum:
      if constexpr (!is_complex<T>) return run<Reduction::minimum, T>;
      break;
    case Reduction::maximum:
      if constexpr (!is_complex<T>) return run<Reduction::maximum, T>;
      break;
    case Reduction::bit_and:
      if constexpr (std::is_integral_v<T>) return run<Reduction::bit_and, T>;
      break;
    case Reduction::bit_or:
      if constexpr (std::is_integral_v<T>) return run<Reduction::bit_or, T>;
      break;
    case Reduction::bit_xor:
      if constexpr (std::is_integral_v<T>) return run<Reduction::bit_xor, T>;
      break;
    case Reduction::none:
      break;
  }
  return nullptr;
}

/// Booleans are 0 or 1: a sum is "any", a product "all".
Function find_boolean(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::maximum:
    case Reduction::bit_or:
      return run<Reduction::bit_or, uint8_t>;
    case Reduction::product:
    case Reduction::minimum:
    case Reduction::bit_and:
      return run<Reduction::bit_and, uint8_t>;
    case Reduction::bit_xor:
      return run<Reduction::bit_xor, uint8_t>;
    default:
      return nullptr;
  }
}

Function find(Dtype dtype, Reduction reduction) {
  switch (dtype) {
    case Dtype::u8:
      return find<uint8_t>(reduction);
    case Dtype::i8:
      return find<int8_t>(reduction);
    case Dtype::i16:
      return find<int16_t>(reduction);
    case Dtype::i32:
      return find<int32_t>(reduction);
    case Dtype::i64:
      return find<int64_t>(reduction);
    case Dtype::u16:
      return find<uint16_t>(reduction);
    case Dtype::u32:
      return find<uint32_t>(reduction);
    case Dtype::u64:
      return find<uint64_t>(reduction);
    case Dtype::f16:
      return find<c10::Half>(reduction);
    case Dtype::bf16:
      return find<c10::BFloat16>(reduction);
    case Dtype::f32:
      return find<float>(reduction);
    case Dtype::f64:
      return find<double>(reduction);
    case Dtype::c64:
      return find<std::complex<float>>(reduction);
    case Dtype::c128:
      return find<std::complex<double>>(reduction);
    case Dtype::boolean:
      return find_boolean(reduction);
    case Dtype::bytes:
      break;
  }
  return nullptr;
}

struct DtypeFacts {
  const char* name;
  size_t size;
};
constexpr DtypeFacts kDtypes[] = {{"uint8", 1},     {"int8", 1},        {"int16", 2},   {"int32", 4},    {"int64", 8},   {"uint16", 2},
                                  {"uint32", 4},    {"uint64", 8},      {"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8},
                                  {"complex64", 8}, {"complex128", 16}, {"bool", 1},    {"bytes", 1}};
constexpr const char* kReductions[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", ""};

}  // namespace

size_t element_size(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].size; }
const char* name_of(Dtype dtype) { return kDtypes[static_cast<int>(dtype)].name; }
const char* name_of(Reduction reduction) { return kReductions[static_cast<int>(reduction)]; }

bool supports(Dtype dtype, Reduction reduction) { return find(dtype, reduction) != nullptr; }

void reduce(Dtype dtype, Reduction reduction, const void* const* inputs, const double* factors, int count, void* out, size_t elements) {
  const Function function = find(dtype, reduction);
  TORCH_INTERNAL_ASSERT(function);
  function(inputs, factors, count, out, elements);
}

}  // namespace neuron::distributed

// Between memory and tiles: conversions, rounding, strided rows.
#include <bit>
#include <cstring>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "csrc/runtime/emulated/kernels/parts.h"

namespace neuron::tiles::NEURON_VECTORS {
namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
struct Bool {
  uint8_t value;
};

// ---- One element ----

float widened(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

/// To the nearest, ties to even.
BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(x != x ? 0x7fc0 | (bits >> 16 & 0x8000) : rounded)};
}

// Half by integer arithmetic where the processor has no instruction for it. The scale factors move the exponent; subnormals come out right
// because the multiplication by a power of two normalises them.
[[maybe_unused]] float widened(Half x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t rest = uint32_t{x.bits & 0x7fffu} << 13;
  const float scaled = std::bit_cast<float>(rest) * 0x1p112f;
  const uint32_t special = rest + (uint32_t{255 - 31} << 23);
  const uint32_t bits = rest >= 0x0f800000 ? special : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(sign | bits);
}

[[maybe_unused]] Half to_half(float x) {
  const auto all = std::bit_cast<uint32_t>(x);
  const uint32_t sign = all >> 16 & 0x8000;
  const uint32_t bits = all & 0x7fffffff;
  uint32_t result;
  if (bits > 0x7f800000) {
    result = 0x7e00;
  } else if (bits >= 0x477ff000) {  // rounds to 2^16 or more
    result = 0x7c00;
  } else if (bits < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded by adding 0.5, whose unit in the last place that is
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    result = (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
}

// ---- Rows ----

#if defined(__F16C__)
/// Runs whole vectors of eight, the rest in a padded one.
void half_row(const Half* from, float* to, int64_t count) {
  auto eight = [](const Half* f, float* t) { _mm256_storeu_ps(t, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(f)))); };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) eight(from + i, to + i);
  if (i == count) return;
  Half padded[8] = {};
  float result[8];
  std::memcpy(padded, from + i, (count - i) * sizeof(Half));
  eight(padded, result);
  std::memcpy(to + i, result, (count - i) * sizeof(float));
}

void half_row(const float* from, Half* to, int64_t count) {
  auto eight = [](const float* f, Half* t) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(t), _mm256_cvtps_ph(_mm256_loadu_ps(f), _MM_FROUND_TO_NEAREST_INT));
  };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) eight(from + i, to + i);
  if (i == count) return;
  float padded[8] = {};
  Half result[8];
  std::memcpy(padded, from + i, (count - i) * sizeof(float));
  eight(padded, result);
  std::memcpy(to + i, result, (count - i) * sizeof(Half));
}
#else
void half_row(const Half* from, float* to, int64_t count) {
  NEURON_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) to[i] = widened(from[i]);
}
void half_row(const float* from, Half* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_half(from[i]);
}
#endif

template <class To, class From>
To converted(From x) {
  if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(converted<float>(x));
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return converted<To>(widened(x));
  } else if constexpr (std::is_same_v<To, Bool>) {
    return {static_cast<uint8_t>(x != From(0))};
  } else if constexpr (std::is_same_v<From, Bool>) {
    return static_cast<To>(x.value != 0);
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void convert(const TileArgs& args) {
  const int64_t count = args.count;
  const auto* from = static_cast<const From*>(args.in[0]);
  auto* to = static_cast<To*>(args.out);
  if constexpr (std::is_same_v<From, To>) {
    if (count > 0) std::memmove(to, from, count * sizeof(To));
  } else {
    NEURON_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) to[i] = converted<To>(from[i]);
  }
}

/// Half goes by way of float, in pieces.
template <class From, class To>
void convert_half(const TileArgs& args) {
  constexpr int64_t kPiece = 256;
  float piece[kPiece];
  for (int64_t i = 0; i < args.count; i += kPiece) {
    const int64_t count = args.count - i < kPiece ? args.count - i : kPiece;
    if constexpr (std::is_same_v<From, Half>) {
      half_row(static_cast<const Half*>(args.in[0]) + i, piece, count);
      convert<float, To>({static_cast<To*>(args.out) + i, {piece, nullptr, nullptr}, count, nullptr});
    } else {
      convert<From, float>({piece, {static_cast<const From*>(args.in[0]) + i, nullptr, nullptr}, count, nullptr});
      half_row(piece, static_cast<Half*>(args.out) + i, count);
    }
  }
}
void half_to_float(const TileArgs& args) { half_row(static_cast<const Half*>(args.in[0]), static_cast<float*>(args.out), args.count); }
void float_to_half(const TileArgs& args) { half_row(static_cast<const float*>(args.in[0]), static_cast<Half*>(args.out), args.count); }

// ---- Rounding in place: out may be in[0] ----

void round_bfloat16(const TileArgs& args) {
  const int64_t count = args.count;
  const auto* from = static_cast<const float*>(args.in[0]);
  auto* to = static_cast<float*>(args.out);
  NEURON_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) to[i] = widened(to_bfloat16(from[i]));
}

void round_half(const TileArgs& args) {
  constexpr int64_t kPiece = 256;
  Half piece[kPiece];
  for (int64_t i = 0; i < args.count; i += kPiece) {
    const int64_t count = args.count - i < kPiece ? args.count - i : kPiece;
    half_row(static_cast<const float*>(args.in[0]) + i, piece, count);
    half_row(piece, static_cast<float*>(args.out) + i, count);
  }
}

template <class T>
void wrap(const TileArgs& args) {
  const int64_t count = args.count;
  const auto* from = static_cast<const int64_t*>(args.in[0]);
  auto* to = static_cast<int64_t*>(args.out);
  NEURON_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

// ---- Strided rows ----

template <class T>
void gather_row(void* to, const void* from, int64_t stride, int64_t count) {
  auto* out = static_cast<T*>(to);
  const auto* in = static_cast<const char*>(from);
  if (stride == 0) {
    const T value = *static_cast<const T*>(from);
    for (int64_t i = 0; i < count; ++i) out[i] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = *reinterpret_cast<const T*>(in + i * stride);
  }
}

template <class T>
void scatter_row(void* to, const void* from, int64_t stride, int64_t count) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const T*>(from);
  for (int64_t i = 0; i < count; ++i) *reinterpret_cast<T*>(out + i * stride) = in[i];
}

void gather(void* to, const void* from, int64_t stride, int64_t count, int size) {
  if (stride == size) return void(std::memcpy(to, from, count * size));
  if (size == 1) return gather_row<uint8_t>(to, from, stride, count);
  if (size == 2) return gather_row<uint16_t>(to, from, stride, count);
  if (size == 4) return gather_row<uint32_t>(to, from, stride, count);
  gather_row<uint64_t>(to, from, stride, count);
}

void scatter(void* to, const void* from, int64_t stride, int64_t count, int size) {
  if (stride == size) return void(std::memcpy(to, from, count * size));
  if (size == 1) return scatter_row<uint8_t>(to, from, stride, count);
  if (size == 2) return scatter_row<uint16_t>(to, from, stride, count);
  if (size == 4) return scatter_row<uint32_t>(to, from, stride, count);
  scatter_row<uint64_t>(to, from, stride, count);
}

// ---- The table ----

template <class T>
constexpr bool is_real = std::is_floating_point_v<T> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>;
template <class T>
constexpr bool is_integer = !is_real<T> && !std::is_same_v<T, Bool>;

template <class From, class To>
constexpr TileFunction conversion() {
  if constexpr (is_real<From> && is_integer<To>)
    return nullptr;  // what is out of range depends on the instruction set
  else if constexpr (std::is_same_v<From, Half> && std::is_same_v<To, float>)
    return &half_to_float;
  else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Half>)
    return &float_to_half;
  else if constexpr (std::is_same_v<From, Half> || std::is_same_v<To, Half>)
    return &convert_half<From, To>;
  else
    return &convert<From, To>;
}

template <Type type, class T>
void put(Library& library) {
  constexpr int t = static_cast<int>(type);
  auto& widen = library.widen[t];
  widen[static_cast<int>(Kind::f32)] = conversion<T, float>();
  widen[static_cast<int>(Kind::f64)] = conversion<T, double>();
  widen[static_cast<int>(Kind::i64)] = conversion<T, int64_t>();
  widen[static_cast<int>(Kind::b8)] = conversion<T, Bool>();
  library.narrow[static_cast<int>(Kind::f32)][t] = conversion<float, T>();
  library.narrow[static_cast<int>(Kind::f64)][t] = conversion<double, T>();
  library.narrow[static_cast<int>(Kind::i64)][t] = conversion<int64_t, T>();
  library.narrow[static_cast<int>(Kind::b8)][t] = conversion<Bool, T>();
}

}  // namespace

void install_conversions(Library& library) {
  put<Type::f32, float>(library);
  put<Type::f64, double>(library);
  put<Type::bf16, BFloat16>(library);
  put<Type::f16, Half>(library);
  put<Type::i64, int64_t>(library);
  put<Type::i32, int32_t>(library);
  put<Type::i16, int16_t>(library);
  put<Type::i8, int8_t>(library);
  put<Type::u8, uint8_t>(library);
  put<Type::b8, Bool>(library);
  library.round[static_cast<int>(Type::bf16)] = &round_bfloat16;
  library.round[static_cast<int>(Type::f16)] = &round_half;
  library.round[static_cast<int>(Type::i32)] = &wrap<int32_t>;
  library.round[static_cast<int>(Type::i16)] = &wrap<int16_t>;
  library.round[static_cast<int>(Type::i8)] = &wrap<int8_t>;
  library.round[static_cast<int>(Type::u8)] = &wrap<uint8_t>;
  library.gather = &gather;
  library.scatter = &scatter;
}

}  // namespace neuron::tiles::NEURON_VECTORS

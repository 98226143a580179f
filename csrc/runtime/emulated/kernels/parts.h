// What the files that are compiled for each instruction set share. Everything here and in them has internal linkage, but for the install
// functions, which carry the name of the instruction set: the linker must never choose a copy for another processor.
#pragma once

#include "csrc/runtime/emulated/kernels/library.h"

#if defined(CPU_CAPABILITY_AVX512)
#define NEURON_VECTORS avx512
#elif defined(CPU_CAPABILITY_AVX2)
#define NEURON_VECTORS avx2
#else
#define NEURON_VECTORS portable
#endif

// The next loop's iterations are independent: out may be an operand, but then element i is made from element i.
#if defined(__clang__)
#define NEURON_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define NEURON_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace neuron::tiles {

namespace portable {
void install_functions(Library& library);
void install_transcendental(Library& library);
void install_rows(Library& library);
void install_conversions(Library& library);
}  // namespace portable
namespace avx2 {
void install_functions(Library& library);
void install_transcendental(Library& library);
void install_rows(Library& library);
void install_conversions(Library& library);
}  // namespace avx2
namespace avx512 {
void install_functions(Library& library);
void install_transcendental(Library& library);
void install_rows(Library& library);
void install_conversions(Library& library);
}  // namespace avx512

namespace {

template <class T>
struct KindOf;
template <>
struct KindOf<float> {
  static constexpr Kind value = Kind::f32;
};
template <>
struct KindOf<double> {
  static constexpr Kind value = Kind::f64;
};
template <>
struct KindOf<int64_t> {
  static constexpr Kind value = Kind::i64;
};
template <>
struct KindOf<uint8_t> {
  static constexpr Kind value = Kind::b8;
};

template <class T>
T number(const Number& n) {
  if constexpr (KindOf<T>::value == Kind::f32 || KindOf<T>::value == Kind::f64)
    return static_cast<T>(n.real);
  else
    return static_cast<T>(n.integer);
}

template <class T>
void set(Library& library, Op op, TileFunction function) {
  library.ops[static_cast<int>(op)][static_cast<int>(KindOf<T>::value)] = function;
}

}  // namespace
}  // namespace neuron::tiles

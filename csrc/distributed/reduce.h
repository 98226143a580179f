// Reductions over the inputs of several ranks, in rank order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace neuron::distributed {

enum class Dtype : uint8_t { u8, i8, i16, i32, i64, u16, u32, u64, f16, bf16, f32, f64, c64, c128, boolean, bytes };

/// `average` divides the sum by the number of inputs, towards zero for integers. `premul_sum` multiplies each input by its own factor
/// first.
enum class Reduction : uint8_t { sum, average, product, minimum, maximum, bit_and, bit_or, bit_xor, premul_sum, none };

size_t element_size(Dtype dtype);
const char* name_of(Dtype dtype);
const char* name_of(Reduction reduction);

/// Whether reduce() knows the pair. What it does not: bit operations on floats, minimum and maximum of complex numbers, anything on `bytes`
/// (dtypes that are only moved), average and premul_sum of booleans.
bool supports(Dtype dtype, Reduction reduction);

/// out[i] = inputs[0][i] op inputs[1][i] op ..., for `elements` elements, in that order. Half and bfloat16 are accumulated in float and
/// rounded once; NaN wins in minimum and maximum. `out` may be one of the inputs. `factors` holds one per input, for premul_sum.
void reduce(Dtype dtype, Reduction reduction, const void* const* inputs, const double* factors, int count, void* out, size_t elements);

}  // namespace neuron::distributed

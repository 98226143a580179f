// The Tensor engine's product for NKI kernels: 16-bit operands, exact products, float32 sums.
#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace neuron::nki {

/// True when this CPU multiplies tiles of the dtype of `example` (bfloat16 or float16) itself; otherwise multiply in float32.
bool has_tile_product(const at::Tensor& example);

/// Bytes per element aside, how many elements pack_moving() writes for a [K, N] tile.
int64_t packed_size(int64_t k, int64_t n);

/// Brings a moving tile [K, N] with dense rows (stride 1 along N), K even, into the order that multiply() reads.
void pack_moving(const at::Tensor& moving, const at::Tensor& packed);

/// dst [M, N] (float32, stride 1 along N) = stationary [M, K] (dense) x moving [K, N] (packed), or += when `accumulate`. The order of the
/// sums depends on K alone, not on the number of threads.
void multiply(const at::Tensor& dst, const at::Tensor& stationary, const at::Tensor& packed, bool accumulate);

}  // namespace neuron::nki

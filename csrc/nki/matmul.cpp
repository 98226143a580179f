#include "csrc/nki/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>

namespace neuron::nki {

namespace {

namespace blas = at::native::cpublas;

// Columns of one packed block: the micro-kernels of the matrix library read blocks of at most this width.
constexpr int64_t kBlock = 64;

int64_t blocks(int64_t n) { return (n + kBlock - 1) / kBlock; }

template <typename T>
void multiply_blocks(const at::Tensor& dst, const at::Tensor& stationary, const at::Tensor& packed, bool accumulate) {
  const int64_t m = dst.size(0), n = dst.size(1), k = stationary.size(1), ld = dst.stride(0);
  const T* a = stationary.const_data_ptr<T>();
  const T* b = packed.const_data_ptr<T>();
  float* c = dst.mutable_data_ptr<float>();
  at::parallel_for(0, blocks(n), 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t columns = std::min(kBlock, n - block * kBlock);
      blas::brgemm(m, columns, k, k, kBlock, ld, accumulate, a, b + block * kBlock * k, c + block * kBlock);
    }
    blas::brgemm_release();
  });
}

}  // namespace

bool has_tile_product(const at::Tensor& example) { return blas::could_pack(example.scalar_type()); }

int64_t packed_size(int64_t k, int64_t n) { return blocks(n) * kBlock * k; }

void pack_moving(const at::Tensor& moving, const at::Tensor& packed) {
  TORCH_CHECK(moving.dim() == 2 && moving.stride(1) == 1 && moving.size(0) % 2 == 0, "pack_moving: K even, dense rows");
  TORCH_CHECK(moving.scalar_type() == packed.scalar_type() && packed.numel() >= packed_size(moving.size(0), moving.size(1)),
              "pack_moving: the packed tile does not fit");
  const int64_t k = moving.size(0), n = moving.size(1), bytes = moving.element_size();
  const auto* source = static_cast<const char*>(moving.const_data_ptr());
  auto* target = static_cast<char*>(packed.mutable_data_ptr());
  for (int64_t block = 0; block < blocks(n); ++block) {
    const int64_t columns = std::min(kBlock, n - block * kBlock);
    blas::pack(k, columns, moving.stride(0), kBlock, moving.scalar_type(), moving.scalar_type(), source + block * kBlock * bytes,
               target + block * kBlock * k * bytes);
  }
}

void multiply(const at::Tensor& dst, const at::Tensor& stationary, const at::Tensor& packed, bool accumulate) {
  TORCH_CHECK(dst.scalar_type() == at::kFloat && dst.dim() == 2 && dst.stride(1) == 1, "multiply: dst is float32 with dense rows");
  TORCH_CHECK(stationary.is_contiguous() && stationary.size(0) == dst.size(0) && stationary.scalar_type() == packed.scalar_type(),
              "multiply: stationary is dense [M, K]");
  TORCH_CHECK(packed.numel() >= packed_size(stationary.size(1), dst.size(1)), "multiply: moving is too small");
  if (stationary.scalar_type() == at::kBFloat16)
    multiply_blocks<at::BFloat16>(dst, stationary, packed, accumulate);
  else
    multiply_blocks<at::Half>(dst, stationary, packed, accumulate);
}

}  // namespace neuron::nki

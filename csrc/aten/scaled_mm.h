// Matrix products whose operands carry scales: what csrc/aten/scaled_mm.cpp (checks, on the host's timeline) and scaled_mm_kernels.cpp
// (the work) agree on.
#pragma once

#include <ATen/BlasBackend.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace neuron {

using at::blas::ScalingType;
using at::blas::SwizzleType;

/// How the scales of one operand lie over its values, seen as a matrix of rows x K (so mat2 transposed): one scale for each block of
/// row_block x k_block values; 0 means all of them.
struct Recipe {
  const char* name;
  int64_t row_block, k_block;
  at::ScalarType scale_dtype;
};

constexpr Recipe kRecipes[] = {
    // In the order of ScalingType.
    {"TensorWise", 0, 0, at::kFloat},
    {"RowWise", 1, 0, at::kFloat},
    {"BlockWise1x16", 1, 16, at::kFloat8_e4m3fn},
    {"BlockWise1x32", 1, 32, at::kFloat8_e8m0fnu},
    {"BlockWise1x128", 1, 128, at::kFloat},
    {"BlockWise128x128", 128, 128, at::kFloat},
};

inline const Recipe& recipe_of(int64_t type) { return kRecipes[type]; }

inline int64_t blocks(int64_t size, int64_t block) { return block == 0 ? 1 : (size + block - 1) / block; }

inline int64_t padded(int64_t size, int64_t multiple) { return blocks(size, multiple) * multiple; }

/// Elements of a scale in the tiled layout SWIZZLE_32_4_4: 128 rows x 4 blocks a tile.
inline int64_t swizzled_numel(int64_t rows, int64_t k_blocks) { return padded(rows, 128) * padded(k_blocks, 4); }

/// Values in one element of a matrix: 2 where two fp4 values share a byte.
inline int64_t packing(at::ScalarType dtype) { return dtype == at::kFloat4_e2m1fn_x2 ? 2 : 1; }

}  // namespace neuron

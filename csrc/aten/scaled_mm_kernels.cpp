// The work behind csrc/aten/scaled_mm.cpp: neuron::scaled_mm and neuron::grouped_mm, which the front end queues like any other op.
//
// Operands are decoded to float32, scaled, and multiplied in float32: float8 products are exact there. PyTorch's own CPU kernel for
// float8 falls back to a reference loop on most machines, 200 times slower for 512 x 512.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "csrc/aten/scaled_mm.h"

namespace neuron {
namespace {

using at::IntArrayRef;
using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

/// Two fp4 values a byte, the first in the low half, to float32: rows x K/2 -> rows x K.
Tensor decode_fp4(const Tensor& rows) {
  static const std::vector<float> values{0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5, -1, -1.5, -2, -3, -4, -6};
  Tensor bytes = rows.contiguous().view(at::kByte);
  Tensor nibbles = at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1).to(at::kInt);
  return at::tensor(values).index_select(0, nibbles.flatten()).view({rows.size(0), 2 * rows.size(1)});
}

/// A scale in the layout SWIZZLE_32_4_4 to rows x k_blocks. A tile holds 32 x 4 x 4: row r, block b of it lies at [r % 32][r / 32][b].
Tensor unswizzle(const Tensor& scale, int64_t rows, int64_t k_blocks) {
  const int64_t row_tiles = blocks(rows, 128), k_tiles = blocks(k_blocks, 4);
  return scale.reshape({row_tiles, k_tiles, 32, 4, 4})
      .permute({0, 3, 2, 1, 4})
      .reshape({row_tiles * 128, k_tiles * 4})
      .slice(0, 0, rows)
      .slice(1, 0, k_blocks);
}

/// The scale of every value of a matrix of rows x k, or what broadcasts to that.
Tensor spread(const Tensor& scale, const Recipe& recipe, bool swizzled, int64_t rows, int64_t k) {
  const int64_t row_blocks = blocks(rows, recipe.row_block), k_blocks = blocks(k, recipe.k_block);
  Tensor table = (swizzled ? unswizzle(scale, rows, k_blocks) : scale.reshape({row_blocks, k_blocks})).to(at::kFloat);
  if (recipe.k_block == 0) return table;
  return table.unsqueeze(1)
      .unsqueeze(3)
      .expand({row_blocks, recipe.row_block, k_blocks, recipe.k_block})
      .reshape({row_blocks * recipe.row_block, k_blocks * recipe.k_block})
      .slice(0, 0, rows)
      .slice(1, 0, k);
}

bool is_swizzled(IntArrayRef swizzles, size_t level) {
  return level < swizzles.size() && swizzles[level] == static_cast<int64_t>(SwizzleType::SWIZZLE_32_4_4);
}

/// rows x K in float32, each level of scales applied.
Tensor decode(const Tensor& rows, TensorList scales, IntArrayRef recipes, IntArrayRef swizzles) {
  Tensor values = rows.scalar_type() == at::kFloat4_e2m1fn_x2 ? decode_fp4(rows) : rows.to(at::kFloat);
  for (size_t level = 0; level < scales.size(); ++level) {
    values = values.mul(spread(scales[level], recipe_of(recipes[level]), is_swizzled(swizzles, level), values.size(0), values.size(1)));
  }
  return values;
}

Tensor scaled_mm(const Tensor& self, const Tensor& mat2, TensorList scale_a, IntArrayRef recipe_a, IntArrayRef swizzle_a,
                 TensorList scale_b, IntArrayRef recipe_b, IntArrayRef swizzle_b, const OptionalTensor& bias,
                 const OptionalTensor& scale_result, at::ScalarType out_dtype) {
  Tensor a = decode(self, scale_a, recipe_a, swizzle_a), b = decode(mat2.t(), scale_b, recipe_b, swizzle_b);
  Tensor out = bias ? at::addmm(bias->to(at::kFloat), a, b.t()) : at::mm(a, b.t());
  if (scale_result && c10::isFloat8Type(out_dtype)) out = out.mul(scale_result->to(at::kFloat));
  return out.to(out_dtype);
}

/// The ends of the groups, checked: a bad offset would read another tensor's memory.
std::vector<int64_t> group_ends(const Tensor& offs, int64_t size) {
  Tensor list = offs.to(at::kLong).contiguous();
  std::vector<int64_t> ends(list.const_data_ptr<int64_t>(), list.const_data_ptr<int64_t>() + list.numel());
  int64_t before = 0;
  for (size_t group = 0; group < ends.size(); ++group) {
    TORCH_CHECK(before <= ends[group] && ends[group] <= size, "_grouped_mm: offs[", group, "] is ", ends[group],
                ", but offsets are the ends of the groups: they must not fall, nor pass the size ", size, " of the grouped dimension");
    before = ends[group];
  }
  return ends;
}

/// Scales of an operand of a grouped product, one group after the other. `jagged_k`: the groups divide K, so each has scales for all rows.
class GroupScales {
 public:
  GroupScales(const OptionalTensor& scale, const Tensor& operand, int64_t recipe, bool swizzled, bool jagged_k)
      : scale_(scale), recipe_(recipe_of(recipe)), swizzled_(swizzled), batched_(operand.dim() == 3), jagged_k_(jagged_k) {}

  /// The scales of the group's `rows` x `k` values; to be asked for in order.
  Tensor next(int64_t group, int64_t begin, int64_t rows, int64_t k) {
    if (batched_) return (*scale_)[group];
    if (!swizzled_) return jagged_k_ ? scale_->slice(0, group * rows, (group + 1) * rows) : scale_->slice(0, begin, begin + rows);
    const int64_t numel = swizzled_numel(rows, blocks(k, recipe_.k_block));
    TORCH_CHECK(used_ + numel <= scale_->numel(), "_scaled_grouped_mm: the scale has ", scale_->numel(), " elements, but groups 0 to ",
                group, " need ", used_ + numel, ": each group's rows are padded to 128, its blocks to 4, and the groups follow each other");
    used_ += numel;
    return scale_->flatten().slice(0, used_ - numel, used_);
  }

 private:
  const OptionalTensor& scale_;
  const Recipe& recipe_;
  const bool swizzled_, batched_, jagged_k_;
  int64_t used_ = 0;
};

Tensor grouped_mm(const Tensor& self, const Tensor& mat2, const OptionalTensor& scale_a, const OptionalTensor& scale_b, int64_t recipe,
                  int64_t swizzle, const OptionalTensor& offs, at::ScalarType out_dtype) {
  const bool a_2d = self.dim() == 2, b_2d = mat2.dim() == 2, jagged_k = a_2d && b_2d, scaled = scale_a.has_value();
  const int64_t groups = offs ? offs->size(0) : self.size(0), m = self.size(-2), n = mat2.size(-1);
  const int64_t pack = jagged_k ? packing(self.scalar_type()) : 1;  // offsets count values
  std::vector<int64_t> ends;
  if (offs) ends = group_ends(*offs, jagged_k ? self.size(1) * pack : a_2d ? m : n);

  std::vector<int64_t> sizes{m, n};
  if (a_2d == b_2d) sizes.insert(sizes.begin(), groups);
  Tensor out = at::empty(sizes, self.options().dtype(out_dtype));
  const bool swizzled = swizzle == static_cast<int64_t>(SwizzleType::SWIZZLE_32_4_4);
  GroupScales scales_a(scale_a, self, recipe, swizzled, jagged_k), scales_b(scale_b, mat2, recipe, swizzled, jagged_k);
  const auto dtype = self.scalar_type() == out_dtype ? out_dtype : at::kFloat;

  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group == 0 || !offs ? 0 : ends[group - 1], end = offs ? ends[group] : 0;
    Tensor a = !a_2d ? self[group] : jagged_k ? self.slice(1, begin / pack, end / pack) : self.slice(0, begin, end);
    Tensor b = !b_2d ? mat2[group] : jagged_k ? mat2.slice(0, begin / pack, end / pack) : mat2.slice(1, begin, end);
    Tensor into = a_2d == b_2d ? out[group] : a_2d ? out.slice(0, begin, end) : out.slice(1, begin, end);
    if (scaled) {
      const int64_t k = a.size(1) * packing(a.scalar_type());
      const int64_t recipes[] = {recipe}, swizzles[] = {swizzle};
      a = decode(a, {scales_a.next(group, begin, a.size(0), k)}, recipes, swizzles);
      b = decode(b.t(), {scales_b.next(group, begin, b.size(1), k)}, recipes, swizzles).t();
      into.copy_(at::mm(a, b));
    } else {
      into.copy_(at::mm(a.to(dtype), b.to(dtype)));
    }
  }
  // What belongs to no group. CUDA leaves it undefined; zero cannot spread NaN into a sum.
  if (a_2d != b_2d) out.slice(a_2d ? 0 : 1, ends.empty() ? 0 : ends.back()).zero_();
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(neuron, m) {
  m.def(
      "scaled_mm(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] swizzle_a, Tensor[] scale_b, int[] recipe_b, "
      "int[] swizzle_b, Tensor? bias, Tensor? scale_result, ScalarType out_dtype) -> Tensor");
  m.def(
      "grouped_mm(Tensor self, Tensor mat2, Tensor? scale_a, Tensor? scale_b, int recipe, int swizzle, Tensor? offs, ScalarType out_dtype) "
      "-> Tensor");
}

TORCH_LIBRARY_IMPL(neuron, CPU, m) {
  m.impl("scaled_mm", TORCH_FN(scaled_mm));
  m.impl("grouped_mm", TORCH_FN(grouped_mm));
}

}  // namespace neuron

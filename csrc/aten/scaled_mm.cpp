// _scaled_mm, _scaled_mm_v2, _grouped_mm, _scaled_grouped_mm and its _v2 on the device: checks, then neuron::scaled_mm or
// neuron::grouped_mm (scaled_mm_kernels.cpp) by way of the front end.
//
// Note [Scales]
// Every recipe of torch.nn.functional.ScalingType is a row of kRecipes (scaled_mm.h). Here each operand is brought to one form: a matrix of
// rows x K (mat2 transposed), its scale a table of row blocks x K blocks, or flat when swizzled. Unlike CUDA, sizes need not be multiples
// of 16, matrices may have any strides, out_dtype any floating dtype, and MX scales may come unswizzled.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/aten/scaled_mm.h"

namespace neuron {
namespace {

using at::IntArrayRef;
using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;
using OptionalDtype = std::optional<at::ScalarType>;

constexpr int64_t kNoSwizzle = static_cast<int64_t>(SwizzleType::NO_SWIZZLE);
constexpr int64_t kSwizzled = static_cast<int64_t>(SwizzleType::SWIZZLE_32_4_4);
constexpr int64_t kBlocks1x128 = static_cast<int64_t>(ScalingType::BlockWise1x128);
constexpr int64_t kBlocks128x128 = static_cast<int64_t>(ScalingType::BlockWise128x128);
constexpr int64_t kMx = static_cast<int64_t>(ScalingType::BlockWise1x32);
constexpr int64_t kNv = static_cast<int64_t>(ScalingType::BlockWise1x16);
constexpr int64_t kRowWise = static_cast<int64_t>(ScalingType::RowWise);
constexpr int64_t kTensorWise = static_cast<int64_t>(ScalingType::TensorWise);

bool takes_swizzle(int64_t recipe) { return recipe == kMx || recipe == kNv; }

bool is_narrow(at::ScalarType dtype) { return c10::isFloat8Type(dtype) || dtype == at::kFloat4_e2m1fn_x2; }

OptionalTensor defined_or_none(const OptionalTensor& tensor) { return tensor && tensor->defined() ? tensor : std::nullopt; }

/// One operand with its scales. `rows` and `k` count values, not bytes of packed ones.
struct Operand {
  const char* scale_name;
  int64_t rows, k;
  std::vector<Tensor> scales;
  std::vector<int64_t> recipes, swizzles;

  std::string describe() const {
    std::string text;
    for (size_t level = 0; level < scales.size(); ++level) {
      text += c10::str(level ? " and " : "", scale_name, " of ", scales[level].sizes(), " ", scales[level].scalar_type());
    }
    return text;
  }
};

// ---- _scaled_mm: the recipe follows from dtype and shape of the scale ----

/// The recipe that a scale of _scaled_mm means, its table being `table`; -1 if none.
int64_t recipe_from(const Tensor& scale, const Tensor& table, int64_t rows, int64_t k) {
  if (scale.scalar_type() == at::kFloat8_e8m0fnu) return scale.numel() == swizzled_numel(rows, blocks(k, 32)) ? kMx : -1;
  if (scale.scalar_type() == at::kFloat8_e4m3fn) return scale.numel() == swizzled_numel(rows, blocks(k, 16)) ? kNv : -1;
  if (scale.scalar_type() != at::kFloat) return -1;
  if (scale.numel() == 1) return kTensorWise;
  for (int64_t recipe : {kRowWise, kBlocks1x128, kBlocks128x128}) {
    const auto& row = recipe_of(recipe);
    if (table.sizes() == IntArrayRef({blocks(rows, row.row_block), blocks(k, row.k_block)})) return recipe;
  }
  return -1;
}

Operand operand_from_shape(const char* scale_name, const Tensor& matrix, const Tensor& scale, bool transposed) {
  Operand operand{scale_name, matrix.size(0), matrix.size(1) * packing(matrix.scalar_type()), {}, {}, {}};
  Tensor table = transposed && scale.dim() == 2 ? scale.t() : scale;
  const int64_t recipe = recipe_from(scale, table, operand.rows, operand.k);
  operand.scales.push_back(takes_swizzle(recipe) ? scale : table);
  operand.recipes.push_back(recipe);
  operand.swizzles.push_back(takes_swizzle(recipe) ? kSwizzled : kNoSwizzle);
  return operand;
}

// ---- _scaled_mm_v2: the caller names the recipes ----

/// The scale as a table of row blocks x K blocks. PyTorch passes those of 128x128 transposed, K blocks padded to 4, and those of rows flat.
Tensor table_of(const Tensor& scale, int64_t recipe, int64_t k) {
  if (recipe == kBlocks128x128 && scale.dim() == 2) {
    const int64_t k_blocks = blocks(k, 128);
    return scale.size(0) == padded(k_blocks, 4) ? scale.slice(0, 0, k_blocks).t() : scale.t();
  }
  if (recipe == kRowWise && scale.numel() == scale.size(scale.dim() == 0 ? 0 : -1)) return scale.reshape({-1, 1});
  return scale;
}

Operand operand_from_recipes(const char* scale_name, const Tensor& matrix, TensorList scales, IntArrayRef recipes, IntArrayRef swizzles) {
  Operand operand{scale_name, matrix.size(0), matrix.size(1) * packing(matrix.scalar_type()), {}, recipes.vec(), swizzles.vec()};
  TORCH_CHECK_VALUE(!recipes.empty() && scales.size() == recipes.size() && swizzles.size() <= recipes.size(), scale_name, ": got ",
                    scales.size(), " scales, ", recipes.size(), " recipes and ", swizzles.size(),
                    " swizzles, but each scale needs one recipe and at most one swizzle");
  operand.swizzles.resize(recipes.size(), kNoSwizzle);
  for (size_t level = 0; level < recipes.size(); ++level) {
    const int64_t recipe = recipes[level];
    TORCH_CHECK_VALUE(recipe >= 0 && recipe < static_cast<int64_t>(std::size(kRecipes)), scale_name, ": unknown recipe ", recipe,
                      ". Pass a torch.nn.functional.ScalingType: TensorWise 0 to BlockWise128x128 5");
    operand.scales.push_back(table_of(scales[level], recipe, operand.k));
  }
  return operand;
}

// ---- Checks common to both ----

void check_scale(const Operand& operand, size_t level) {
  const int64_t type = operand.recipes[level];
  const Recipe& recipe = recipe_of(type);
  const Tensor& scale = operand.scales[level];
  const bool swizzled = operand.swizzles[level] == kSwizzled;
  TORCH_CHECK_VALUE(!swizzled || takes_swizzle(type), operand.scale_name, ": ", recipe.name,
                    " scales are not swizzled. Pass SwizzleType.NO_SWIZZLE");
  const int64_t row_blocks = blocks(operand.rows, recipe.row_block), k_blocks = blocks(operand.k, recipe.k_block);
  const int64_t numel = swizzled ? swizzled_numel(operand.rows, k_blocks) : row_blocks * k_blocks;
  const bool fits = scale.numel() == numel && (swizzled || type == kTensorWise || scale.sizes() == IntArrayRef({row_blocks, k_blocks}));
  TORCH_CHECK_VALUE(
      fits && scale.scalar_type() == recipe.scale_dtype, operand.scale_name, " must have ", numel, " ", recipe.scale_dtype, " elements",
      swizzled ? " (rows padded to 128, blocks to 4)" : c10::str(" (", row_blocks, " row blocks x ", k_blocks, " blocks of K)"), " for ",
      recipe.name, " scaling of ", operand.rows, " x ", operand.k, " values, but got ", scale.sizes(), " ", scale.scalar_type());
}

/// Which recipes go together: any blocks of 128 values of K, else the same on both sides; TensorWise may stand above 1x16 (NVFP4).
bool compatible(const Operand& a, const Operand& b) {
  auto valid = [](const std::vector<int64_t>& r) {
    return (r.size() == 1 && r[0] >= 0) || (r.size() == 2 && r[0] == kNv && r[1] == kTensorWise);
  };
  auto by_128 = [](const std::vector<int64_t>& r) { return r.size() == 1 && recipe_of(r[0]).k_block == 128; };
  if (!valid(a.recipes) || !valid(b.recipes)) return false;
  return a.recipes == b.recipes || (by_128(a.recipes) && by_128(b.recipes));
}

void check_compatible(const Operand& a, const Operand& b) {
  const int64_t k128 = blocks(a.k, 128);
  TORCH_CHECK_VALUE(compatible(a, b),
                    "Invalid scaling configuration.\n- TensorWise: both scales float32 singletons.\n- RowWise: float32, scale_a (", a.rows,
                    ", 1) and scale_b (1, ", b.rows, ").\n- BlockWise1x128 or BlockWise128x128 on either side: float32, scale_a (", a.rows,
                    ", ", k128, ") or (", blocks(a.rows, 128), ", ", k128, "), scale_b (", k128, ", ", b.rows, ") or (", k128, ", ",
                    blocks(b.rows, 128), ").\n- BlockWise1x32: float8_e8m0fnu, swizzled: ", swizzled_numel(a.rows, blocks(a.k, 32)),
                    " and ", swizzled_numel(b.rows, blocks(b.k, 32)),
                    " elements.\n- BlockWise1x16: float8_e4m3fn, swizzled: ", swizzled_numel(a.rows, blocks(a.k, 16)), " and ",
                    swizzled_numel(b.rows, blocks(b.k, 16)), " elements.\nGot ", a.describe(), ", ", b.describe(), ".");
}

void check_matrices(const Tensor& self, const Tensor& mat2) {
  TORCH_CHECK(self.dim() == 2, "mat1 must be a matrix");
  TORCH_CHECK(mat2.dim() == 2, "mat2 must be a matrix");
  TORCH_CHECK(self.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (", self.size(0), "x", self.size(1), " and ",
              mat2.size(0), "x", mat2.size(1), ")");
  TORCH_CHECK_VALUE(
      is_narrow(self.scalar_type()) && is_narrow(mat2.scalar_type()) && packing(self.scalar_type()) == packing(mat2.scalar_type()),
      "Invalid scaling configuration. Expected both inputs to be float8, or both float4_e2m1fn_x2, but got ", self.scalar_type(), " and ",
      mat2.scalar_type());
}

at::ScalarType check_out_dtype(const Tensor& self, OptionalDtype out_dtype) {
  const auto dtype = out_dtype.value_or(self.scalar_type());
  TORCH_CHECK_VALUE(at::isFloatingType(dtype) && packing(dtype) == 1, "out_dtype must be a floating dtype of at least 8 bits, but is ",
                    dtype, ". Pass torch.bfloat16, torch.float16, torch.float32 or a float8 dtype");
  return dtype;
}

Tensor launch_scaled_mm(const Tensor& self, const Tensor& mat2, const Operand& a, const Operand& b, const OptionalTensor& bias,
                        const OptionalTensor& scale_result, OptionalDtype out_dtype) {
  check_compatible(a, b);
  for (const Operand* operand : {&a, &b}) {
    for (size_t level = 0; level < operand->scales.size(); ++level) check_scale(*operand, level);
  }
  TORCH_CHECK(!bias || bias->numel() == mat2.size(1), "Bias must be size ", mat2.size(1), " but got ", bias->numel());
  TORCH_CHECK_VALUE(!scale_result || (scale_result->numel() == 1 && scale_result->scalar_type() == at::kFloat),
                    "scale_result must be a float scalar");
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("neuron::scaled_mm", "")
                             .typed<Tensor(const Tensor&, const Tensor&, TensorList, IntArrayRef, IntArrayRef, TensorList, IntArrayRef,
                                           IntArrayRef, const OptionalTensor&, const OptionalTensor&, at::ScalarType)>();
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), self, mat2, a.scales, a.recipes, a.swizzles, b.scales, b.recipes,
                       b.swizzles, bias, scale_result, check_out_dtype(self, out_dtype));
}

Tensor scaled_mm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b, const OptionalTensor& bias,
                 const OptionalTensor& scale_result, OptionalDtype out_dtype, bool /*use_fast_accum*/) {
  check_matrices(self, mat2);
  return launch_scaled_mm(self, mat2, operand_from_shape("scale_a", self, scale_a, false),
                          operand_from_shape("scale_b", mat2.t(), scale_b, true), defined_or_none(bias), defined_or_none(scale_result),
                          out_dtype);
}

Tensor scaled_mm_v2(const Tensor& self, const Tensor& mat2, TensorList scale_a, IntArrayRef recipe_a, IntArrayRef swizzle_a,
                    TensorList scale_b, IntArrayRef recipe_b, IntArrayRef swizzle_b, const OptionalTensor& bias, OptionalDtype out_dtype,
                    IntArrayRef contraction_dim, bool /*use_fast_accum*/) {
  check_matrices(self, mat2);
  TORCH_CHECK_VALUE(contraction_dim.empty() || (contraction_dim.size() == 2 && (contraction_dim[0] == 1 || contraction_dim[0] == -1) &&
                                                (contraction_dim[1] == 0 || contraction_dim[1] == -2)),
                    "contraction_dim must be empty or [1, 0], the dimensions of mat_a and mat_b that hold K, but got ", contraction_dim);
  return launch_scaled_mm(self, mat2, operand_from_recipes("scale_a", self, scale_a, recipe_a, swizzle_a),
                          operand_from_recipes("scale_b", mat2.t(), scale_b, recipe_b, swizzle_b), defined_or_none(bias), std::nullopt,
                          out_dtype);
}

Tensor& write_to(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor& scaled_mm_out(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b, const OptionalTensor& bias,
                      const OptionalTensor& scale_result, OptionalDtype out_dtype, bool use_fast_accum, Tensor& out) {
  TORCH_CHECK(!out_dtype || *out_dtype == out.scalar_type(), "out_dtype must match output matrix type");
  return write_to(out, scaled_mm(self, mat2, scale_a, scale_b, bias, scale_result, out.scalar_type(), use_fast_accum));
}

Tensor& scaled_mm_v2_out(const Tensor& self, const Tensor& mat2, TensorList scale_a, IntArrayRef recipe_a, IntArrayRef swizzle_a,
                         TensorList scale_b, IntArrayRef recipe_b, IntArrayRef swizzle_b, const OptionalTensor& bias,
                         OptionalDtype out_dtype, IntArrayRef contraction_dim, bool use_fast_accum, Tensor& out) {
  TORCH_CHECK(!out_dtype || *out_dtype == out.scalar_type(), "out_dtype must match output matrix type");
  return write_to(out, scaled_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out.scalar_type(),
                                    contraction_dim, use_fast_accum));
}

// ---- Groups of matrices ----

void check_groups(const Tensor& self, const Tensor& mat2, const OptionalTensor& offs, const OptionalTensor& bias) {
  TORCH_CHECK((self.dim() == 2 || self.dim() == 3) && (mat2.dim() == 2 || mat2.dim() == 3), "mat_a and mat_b have to be 2 or 3d, but got ",
              self.dim(), "d and ", mat2.dim(), "d");
  TORCH_CHECK(self.size(-1) == mat2.size(-2), "contraction dimension of mat_a and mat_b must match");
  const bool a_2d = self.dim() == 2, b_2d = mat2.dim() == 2;
  TORCH_CHECK(offs.has_value() == (a_2d || b_2d), "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
  TORCH_CHECK(!bias, "Bias not supported yet. Add it to the result");
  if (offs) {
    TORCH_CHECK(offs->dim() == 1, "offs has to be 1D");
    TORCH_CHECK(offs->scalar_type() == at::kInt, "Offsets have to be int32");
  }
  const int64_t groups_a = a_2d ? (offs ? offs->size(0) : 0) : self.size(0), groups_b = b_2d ? offs->size(0) : mat2.size(0);
  TORCH_CHECK(groups_a == groups_b, a_2d || b_2d ? "matrix batch sizes have to match" : "batched dimension has to match", ", but got ",
              groups_a, " and ", groups_b);
}

Tensor launch_grouped_mm(const Tensor& self, const Tensor& mat2, const OptionalTensor& scale_a, const OptionalTensor& scale_b,
                         int64_t recipe, int64_t swizzle, const OptionalTensor& offs, at::ScalarType out_dtype) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("neuron::grouped_mm", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&, int64_t, int64_t,
                                           const OptionalTensor&, at::ScalarType)>();
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), self, mat2, scale_a, scale_b, recipe, swizzle, offs, out_dtype);
}

Tensor grouped_mm(const Tensor& self, const Tensor& mat2, const OptionalTensor& offs_, const OptionalTensor& bias,
                  OptionalDtype out_dtype) {
  const auto offs = defined_or_none(offs_);
  const auto dtype = self.scalar_type(), out = out_dtype.value_or(dtype);
  TORCH_CHECK(dtype == mat2.scalar_type() && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf),
              "Expected mat_a and mat_b to be Float32, BFloat16 or Float16 matrices of the same dtype, got ", dtype, " and ",
              mat2.scalar_type());
  TORCH_CHECK(out == dtype || out == at::kFloat, "Grouped gemm output dtype must match `mat_a` dtype or be float32, but is ", out);
  check_groups(self, mat2, offs, defined_or_none(bias));
  return launch_grouped_mm(self, mat2, std::nullopt, std::nullopt, kTensorWise, kNoSwizzle, offs, out);
}

/// Scales of rows: 1D of the rows of a 2D matrix (for every group where the groups divide K), (groups, rows) of a 3D one.
void check_row_scale(const char* name, const Tensor& matrix, const Tensor& scale, int64_t rows, int64_t repeats) {
  TORCH_CHECK_VALUE(scale.scalar_type() == at::kFloat, name, " must be float32 for RowWise scaling, but is ", scale.scalar_type());
  if (matrix.dim() == 2) {
    TORCH_CHECK_VALUE(scale.dim() == 1, name, ": scale must be a 1D tensor, but got ", scale.dim(), "D");
    TORCH_CHECK_VALUE(scale.size(0) == rows * repeats, name, ": scale must have the same length as mat, ", rows * repeats, ", but has ",
                      scale.size(0));
  } else {
    TORCH_CHECK_VALUE(scale.sizes() == IntArrayRef({matrix.size(0), rows}), name, ": scale must have shape (", matrix.size(0), ", ", rows,
                      ") for a 3D mat, but has ", scale.sizes());
  }
}

/// Scales of blocks: those of each group padded and swizzled by themselves; for a 2D matrix their sizes depend on the offsets.
void check_block_scale(const char* name, const Tensor& matrix, const Tensor& scale, int64_t rows, int64_t k, int64_t recipe) {
  const Recipe& row = recipe_of(recipe);
  TORCH_CHECK_VALUE(scale.scalar_type() == row.scale_dtype, name, " must be ", row.scale_dtype, " for ", row.name, " scaling, but is ",
                    scale.scalar_type());
  if (matrix.dim() == 2) return;
  const int64_t numel = swizzled_numel(rows, blocks(k, row.k_block));
  TORCH_CHECK_VALUE(scale.numel() == matrix.size(0) * numel && scale.size(0) == matrix.size(0), name, " must have shape (", matrix.size(0),
                    ", ", numel, ") (rows padded to 128, blocks to 4), but has ", scale.sizes());
}

Tensor scaled_grouped(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b, int64_t recipe, int64_t swizzle,
                      const OptionalTensor& offs, const OptionalTensor& bias, OptionalDtype out_dtype) {
  TORCH_CHECK_VALUE(
      is_narrow(self.scalar_type()) && is_narrow(mat2.scalar_type()) && packing(self.scalar_type()) == packing(mat2.scalar_type()),
      "Expected mat_a and mat_b to be float8, or both float4_e2m1fn_x2, but got ", self.scalar_type(), " and ", mat2.scalar_type());
  check_groups(self, mat2, offs, bias);
  const int64_t m = self.size(-2), n = mat2.size(-1), k = self.size(-1) * packing(self.scalar_type());
  if (recipe == kRowWise) {
    const int64_t repeats = self.dim() == 2 && mat2.dim() == 2 ? offs->size(0) : 1;
    check_row_scale("scale_a", self, scale_a, m, repeats);
    check_row_scale("scale_b", mat2, scale_b, n, repeats);
  } else {
    TORCH_CHECK_VALUE(swizzle == kSwizzled, "grouped ", recipe_of(recipe).name, " scales must be swizzled: SwizzleType.SWIZZLE_32_4_4");
    check_block_scale("scale_a", self, scale_a, m, k, recipe);
    check_block_scale("scale_b", mat2, scale_b, n, k, recipe);
  }
  const auto dtype = out_dtype.value_or(at::kBFloat16);
  return launch_grouped_mm(self, mat2, scale_a, scale_b, recipe, swizzle, offs, check_out_dtype(self, dtype));
}

Tensor scaled_grouped_mm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b, const OptionalTensor& offs,
                         const OptionalTensor& bias, const OptionalTensor& scale_result, OptionalDtype out_dtype, bool /*use_fast_accum*/) {
  TORCH_CHECK(!defined_or_none(scale_result), "Scale result not supported yet. Multiply the result");
  const bool mx = scale_a.scalar_type() == at::kFloat8_e8m0fnu;
  return scaled_grouped(self, mat2, scale_a, scale_b, mx ? kMx : kRowWise, mx ? kSwizzled : kNoSwizzle, defined_or_none(offs),
                        defined_or_none(bias), out_dtype);
}

Tensor scaled_grouped_mm_v2(const Tensor& self, const Tensor& mat2, TensorList scale_a, IntArrayRef recipe_a, IntArrayRef swizzle_a,
                            TensorList scale_b, IntArrayRef recipe_b, IntArrayRef swizzle_b, const OptionalTensor& offs,
                            const OptionalTensor& bias, OptionalDtype out_dtype, IntArrayRef /*contraction_dim*/, bool /*use_fast_accum*/) {
  TORCH_CHECK_VALUE(scale_a.size() == 1 && scale_b.size() == 1 && recipe_a.size() == 1 && recipe_a == recipe_b && swizzle_a == swizzle_b &&
                        (recipe_a[0] == kRowWise || takes_swizzle(recipe_a[0])),
                    "Invalid scaling configuration. A grouped product takes one scale for each operand, both RowWise, BlockWise1x32 or "
                    "BlockWise1x16, but got recipes ",
                    recipe_a, " and ", recipe_b, ", swizzles ", swizzle_a, " and ", swizzle_b);
  return scaled_grouped(self, mat2, scale_a[0], scale_b[0], recipe_a[0], swizzle_a.empty() ? kNoSwizzle : swizzle_a[0],
                        defined_or_none(offs), defined_or_none(bias), out_dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_mm", TORCH_FN(scaled_mm));
  m.impl("_scaled_mm.out", TORCH_FN(scaled_mm_out));
  m.impl("_scaled_mm_v2", TORCH_FN(scaled_mm_v2));
  m.impl("_scaled_mm_v2.out", TORCH_FN(scaled_mm_v2_out));
  m.impl("_grouped_mm", TORCH_FN(grouped_mm));
  m.impl("_scaled_grouped_mm", TORCH_FN(scaled_grouped_mm));
  m.impl("_scaled_grouped_mm_v2", TORCH_FN(scaled_grouped_mm_v2));
}

}  // namespace neuron

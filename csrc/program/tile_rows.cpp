#include "csrc/program/tile_rows.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace neuron {
namespace {

using tiles::Op;
constexpr auto kCommon = TileRule::common, kReal = TileRule::real, kCompare = TileRule::compare, kLogical = TileRule::logical,
               kOwn = TileRule::own;

// clang-format off
constexpr TileRow kRows[] = {
    // ---- copies and fills ----
    {"clone", "self", "", kOwn, Op::identity, TileRow::copies},
    {"copy", "src", "", kOwn, Op::identity, TileRow::copies},
    {"_to_copy", "self", "", kOwn, Op::identity, TileRow::copies},
    {"fill", "value", "", kOwn, Op::identity, TileRow::checked},
    {"full_like", "fill_value", "", kOwn, Op::identity, TileRow::checked},
    {"full", "fill_value", "", kOwn, Op::identity, TileRow::checked},
    {"zero", "", "", kOwn, Op::identity, TileRow::none, 0},
    {"zeros_like", "", "", kOwn, Op::identity, TileRow::none, 0},
    {"ones_like", "", "", kOwn, Op::identity, TileRow::none, 1},
    {"zeros", "", "", kOwn, Op::identity, TileRow::none, 0},
    {"ones", "", "", kOwn, Op::identity, TileRow::none, 1},
    {"where", "condition! self other", "", kCommon, Op::where},
    {"masked_fill", "mask! value self", "", kOwn, Op::where, TileRow::checked},
    // ---- arithmetic ----
    {"add", "self other", "alpha", kCommon, Op::add, TileRow::narrow_numbers},
    {"sub", "self other", "alpha", kCommon, Op::sub, TileRow::narrow_numbers},
    {"rsub", "other self", "alpha", kCommon, Op::sub, TileRow::narrow_numbers},
    {"mul", "self other", "", kCommon, Op::mul, TileRow::opmath | TileRow::narrow_scalars},
    {"div", "self other", "", kReal, Op::div, TileRow::opmath},
    {"neg", "self", "", kCommon, Op::neg},
    {"abs", "self", "", kCommon, Op::abs},
    {"sign", "self", "", kCommon, Op::sign},
    {"reciprocal", "self", "", kReal, Op::reciprocal},
    {"sqrt", "self", "", kReal, Op::sqrt},
    {"rsqrt", "self", "", kReal, Op::rsqrt},
    {"floor", "self", "", kCommon, Op::floor},
    {"ceil", "self", "", kCommon, Op::ceil},
    {"trunc", "self", "", kCommon, Op::trunc},
    {"round", "self", "", kCommon, Op::round},
    {"maximum", "self other", "", kCommon, Op::maximum},
    {"minimum", "self other", "", kCommon, Op::minimum},
    {"clamp", "self min? max?", "", kCommon, Op::clamp, TileRow::checked},
    {"clamp_min", "self min", "", kCommon, Op::maximum, TileRow::checked},
    {"clamp_max", "self max", "", kCommon, Op::minimum, TileRow::checked},
    {"lerp", "self end weight", "", kCommon, Op::lerp, TileRow::opmath},
    {"addcmul", "self tensor1 tensor2", "value", kCommon, Op::addcmul},
    {"addcdiv", "self tensor1 tensor2", "value", kCommon, Op::addcdiv},
    {"pow", "self exponent", "", kCommon, Op::pow, TileRow::narrow_numbers},
    {"atan2", "self other", "", kReal, Op::atan2},
    // ---- comparisons, logic, bits ----
    {"eq", "self other", "", kCompare, Op::eq},
    {"ne", "self other", "", kCompare, Op::ne},
    {"lt", "self other", "", kCompare, Op::lt},
    {"le", "self other", "", kCompare, Op::le},
    {"gt", "self other", "", kCompare, Op::gt},
    {"ge", "self other", "", kCompare, Op::ge},
    {"isnan", "self", "", kCompare, Op::isnan},
    {"logical_and", "self other", "", kLogical, Op::bit_and},
    {"logical_or", "self other", "", kLogical, Op::bit_or},
    {"logical_xor", "self other", "", kLogical, Op::bit_xor},
    {"logical_not", "self", "", kLogical, Op::bit_not},
    {"bitwise_and", "self other", "", kCommon, Op::bit_and},
    {"bitwise_or", "self other", "", kCommon, Op::bit_or},
    {"bitwise_xor", "self other", "", kCommon, Op::bit_xor},
    {"bitwise_not", "self", "", kCommon, Op::bit_not},
    // ---- functions ----
    {"exp", "self", "", kReal, Op::exp},
    {"exp2", "self", "", kReal, Op::exp2},
    {"expm1", "self", "", kReal, Op::expm1},
    {"log", "self", "", kReal, Op::log},
    {"log1p", "self", "", kReal, Op::log1p},
    {"log2", "self", "", kReal, Op::log2},
    {"log10", "self", "", kReal, Op::log10},
    {"sin", "self", "", kReal, Op::sin},
    {"cos", "self", "", kReal, Op::cos},
    {"tan", "self", "", kReal, Op::tan},
    {"asin", "self", "", kReal, Op::asin},
    {"acos", "self", "", kReal, Op::acos},
    {"atan", "self", "", kReal, Op::atan},
    {"sinh", "self", "", kReal, Op::sinh},
    {"cosh", "self", "", kReal, Op::cosh},
    {"tanh", "self", "", kReal, Op::tanh},
    {"asinh", "self", "", kReal, Op::asinh},
    {"acosh", "self", "", kReal, Op::acosh},
    {"atanh", "self", "", kReal, Op::atanh},
    {"erf", "self", "", kReal, Op::erf},
    {"erfc", "self", "", kReal, Op::erfc},
    {"sigmoid", "self", "", kReal, Op::sigmoid},
    // ---- activations and their gradients ----
    {"relu", "self", "", kCommon, Op::relu},
    {"silu", "self", "", kCommon, Op::silu},
    {"mish", "self", "", kCommon, Op::mish},
    {"gelu", "self", "", kCommon, Op::gelu},
    {"softplus", "self", "beta threshold", kCommon, Op::softplus},
    {"elu", "self", "alpha scale input_scale", kCommon, Op::elu},
    {"leaky_relu", "self", "negative_slope", kCommon, Op::leaky_relu},
    {"hardtanh", "self min_val max_val", "", kOwn, Op::clamp, TileRow::checked},
    {"hardsigmoid", "self", "", kCommon, Op::hardsigmoid},
    {"hardswish", "self", "", kCommon, Op::hardswish},
    {"threshold", "self", "threshold value", kCommon, Op::threshold},
    {"threshold_backward", "grad_output self", "threshold", kCommon, Op::threshold_backward},
    {"silu_backward", "grad_output self", "", kCommon, Op::silu_backward},
    {"mish_backward", "grad_output self", "", kCommon, Op::mish_backward},
    {"gelu_backward", "grad_output self", "", kCommon, Op::gelu_backward},
    {"softplus_backward", "grad_output self", "beta threshold", kCommon, Op::softplus_backward},
    {"elu_backward", "grad_output self_or_result", "alpha scale input_scale", kCommon, Op::elu_backward},
    {"leaky_relu_backward", "grad_output self", "negative_slope", kCommon, Op::leaky_relu_backward},
    {"hardtanh_backward", "grad_output self", "min_val max_val", kCommon, Op::hardtanh_backward},
    {"hardsigmoid_backward", "grad_output self", "", kCommon, Op::hardsigmoid_backward},
    {"hardswish_backward", "grad_output self", "", kCommon, Op::hardswish_backward},
    {"sigmoid_backward", "grad_output output", "", kReal, Op::sigmoid_backward},
    {"tanh_backward", "grad_output output", "", kReal, Op::tanh_backward},
    // ---- whole rows ----
    {"_softmax", "self", "", kCommon, Op::softmax},
    {"_log_softmax", "self", "", kCommon, Op::log_softmax},
    {"_softmax_backward_data", "grad_output output", "", kCommon, Op::softmax_backward},
    {"_log_softmax_backward_data", "grad_output output", "", kCommon, Op::log_softmax_backward},
    {"native_layer_norm", "input weight? bias?", "eps", kOwn, Op::normalize},
};
// clang-format on

// Arguments that say where and how a result lies; its metadata tells.
constexpr std::array<std::string_view, 8> kOfMetadata{"memory_format", "dtype",        "layout", "device",
                                                      "pin_memory",    "non_blocking", "size",   "names"};

// Arguments that choose the operation, and those that say where the rows are; see choose() in tile_plan.cpp.
constexpr std::array<std::string_view, 3> kOfChoice{"approximate", "is_result", "self_is_result"};
constexpr std::array<std::string_view, 4> kOfRows{"dim", "half_to_float", "input_dtype", "normalized_shape"};

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    words.emplace_back(text.substr(at, space - at));
    at = space + 1;
  }
  return words;
}

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

constexpr std::string_view kForeach = "_foreach_";

/// What `_foreach_` overloads call the argument that others call `name`.
std::vector<std::string_view> foreach_names(std::string_view name) {
  if (name == "other" || name == "min" || name == "max") return {"other", "scalar", "scalars"};
  if (name == "value") return {"value", "scalars"};
  if (name == "end") return {"tensors1"};
  if (name == "weight") return {"weight", "weights"};
  return {name};
}

/// `name` without "aten::" and "_foreach_".
const TileRow* row_of(std::string_view name) {
  static const auto* table = [] {
    auto* rows = new std::unordered_map<std::string_view, const TileRow*>;
    for (const auto& row : kRows) rows->emplace(row.name, &row);
    return rows;
  }();
  auto found = table->find(name);
  if (found == table->end() && name.size() > 1 && name.back() == '_') found = table->find(name.substr(0, name.size() - 1));
  return found == table->end() ? nullptr : found->second;
}

std::unique_ptr<TileSignature> make_signature(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  std::string_view name = schema.name();
  if (name.substr(0, 6) != "aten::") return nullptr;
  name.remove_prefix(6);
  auto signature = std::make_unique<TileSignature>();
  if (name.substr(0, kForeach.size()) == kForeach) {
    name.remove_prefix(kForeach.size());
    signature->foreach = true;
  }
  const TileRow* row = signature->row = row_of(name);
  if (row == nullptr || schema.returns().size() > (row->op == Op::normalize ? 3 : 1)) return nullptr;
  const auto& arguments = schema.arguments();
  auto find = [&](std::string_view wanted) {
    const auto names = signature->foreach ? foreach_names(wanted) : std::vector<std::string_view>{wanted};
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (contains(names, arguments[i].name())) return static_cast<int>(i);
    }
    return -1;
  };
  std::vector<bool> known(arguments.size(), false);
  for (auto& word : words_of(row->operands)) {
    const bool optional = word.back() == '?', mask = word.back() == '!';
    if (optional || mask) word.pop_back();
    const int at = find(word);
    if (at < 0) return nullptr;
    known[at] = true;
    signature->operands.push_back(at);
    signature->masks.push_back(mask);
  }
  for (const auto& word : words_of(row->numbers)) {
    const int at = find(word);
    if (at >= 0) {
      if (arguments[at].type()->kind() == c10::TypeKind::TensorType) return nullptr;  // _foreach_addcmul.Tensor: numbers on the device
      known[at] = true;
    } else if (!signature->foreach || word != "alpha") {
      return nullptr;
    }
    signature->numbers.push_back(at);
  }
  const bool fills = row->rule == TileRule::own && row->op == Op::identity;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      if (signature->written >= 0) return nullptr;
      signature->written = static_cast<int>(i);
      known[i] = true;
    }
    if (known[i] || contains(kOfChoice, arguments[i].name())) continue;
    if (tiles::is_row(row->op) && contains(kOfRows, arguments[i].name())) continue;
    // `self` of full_like and of fill_: its shape counts, its values do not.
    if (fills && (arguments[i].name() == "self" || contains(kOfMetadata, arguments[i].name()))) continue;
    return nullptr;
  }
  return signature;
}

}  // namespace

const TileSignature* tile_signature(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* signatures = new std::unordered_map<c10::OperatorName, std::unique_ptr<TileSignature>>;
  std::lock_guard lock(mutex);
  auto [found, added] = signatures->try_emplace(op.operator_name());
  if (added) found->second = make_signature(op);
  return found->second.get();
}

}  // namespace neuron

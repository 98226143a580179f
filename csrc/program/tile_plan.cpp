#include "csrc/program/tile_plan.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace neuron {

std::optional<tiles::Type> tile_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return tiles::Type::f32;
    case at::kDouble:
      return tiles::Type::f64;
    case at::kBFloat16:
      return tiles::Type::bf16;
    case at::kHalf:
      return tiles::Type::f16;
    case at::kLong:
      return tiles::Type::i64;
    case at::kInt:
      return tiles::Type::i32;
    case at::kShort:
      return tiles::Type::i16;
    case at::kChar:
      return tiles::Type::i8;
    case at::kByte:
      return tiles::Type::u8;
    case at::kBool:
      return tiles::Type::b8;
    default:
      return std::nullopt;
  }
}

/// Bytes from the first element to the end of the last.
int64_t extent(const TileLayout& layout, int64_t item) {
  int64_t last = 0;
  for (size_t d = 0; d < layout.sizes.size(); ++d) last += (layout.sizes[d] - 1) * layout.strides[d];
  return last + item;
}

namespace {

using tiles::Kind;
using tiles::Op;
using tiles::Type;

constexpr int kMostDims = 16;  // of an operand's layout, see each_run() in fused.cpp

bool plain(const TensorMeta& meta) { return !meta.conj && !meta.neg && !meta.zero && tile_type(meta.dtype).has_value(); }

// ---- Layouts ----

/// Result dimensions from the outermost to the innermost in memory.
c10::SmallVector<int, 8> memory_order(const TensorMeta& result) {
  c10::SmallVector<int, 8> order;
  for (int d = 0; d < static_cast<int>(result.sizes.size()); ++d) order.push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    // A dimension of one element has no order of its own.
    if (result.sizes[a] == 1 || result.sizes[b] == 1) return false;
    return result.strides[a] > result.strides[b];
  });
  return order;
}

/// An operand's layout over the result's flat space; nothing when it does not broadcast to the result.
std::optional<TileLayout> layout_over(const TensorMeta& operand, const TensorMeta& result, const c10::SmallVector<int, 8>& order) {
  const int missing = static_cast<int>(result.sizes.size()) - static_cast<int>(operand.sizes.size());
  if (missing < 0) return std::nullopt;
  const auto item = static_cast<int64_t>(c10::elementSize(operand.dtype));
  TileLayout layout;
  for (int d : order) {
    const int64_t size = result.sizes[d];
    int64_t stride = 0;
    if (d >= missing) {
      const int64_t own = operand.sizes[d - missing];
      if (own != size && own != 1) return std::nullopt;
      stride = own == 1 ? 0 : operand.strides[d - missing] * item;
    }
    if (size == 1) continue;
    if (!layout.sizes.empty() && layout.strides.back() == stride * size) {
      layout.sizes.back() *= size;
      layout.strides.back() = stride;
    } else {
      layout.sizes.push_back(size);
      layout.strides.push_back(stride);
    }
  }
  if (layout.sizes.empty()) {
    layout.sizes.push_back(1);
    layout.strides.push_back(item);
  }
  return layout;
}

/// Whether two elements of a tensor may share memory. Says yes rather than no.
bool overlaps_itself(const TensorMeta& meta) {
  auto order = memory_order(meta);
  int64_t span = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (meta.sizes[order[i]] == 1) continue;
    if (meta.strides[order[i]] < span) return true;
    span = meta.strides[order[i]] * (meta.sizes[order[i]] - 1) + span;
  }
  return false;
}

// ---- Type promotion, as c10 and TensorIterator do it ----

class Promotion {
 public:
  void add(const TensorMeta& meta) {
    auto& state = meta.wrapped_number ? wrapped_ : meta.sizes.empty() ? zero_ : dim_;
    auto type = meta.dtype;
    if (meta.wrapped_number && at::isFloatingType(type)) type = c10::typeMetaToScalarType(c10::get_default_dtype());
    merge(state, type);
  }
  void add_number(at::ScalarType type) {
    merge(wrapped_, at::isFloatingType(type) ? c10::typeMetaToScalarType(c10::get_default_dtype()) : type);
  }
  at::ScalarType result() const { return combine(dim_, combine(zero_, wrapped_)); }

 private:
  static void merge(at::ScalarType& state, at::ScalarType type) {
    state = state == at::ScalarType::Undefined ? type : c10::promoteTypes(state, type);
  }
  static at::ScalarType combine(at::ScalarType higher, at::ScalarType lower) {
    if (higher == at::ScalarType::Undefined) return lower;
    if (lower == at::ScalarType::Undefined || at::isFloatingType(higher)) return higher;
    if (higher == at::kBool || at::isFloatingType(lower)) return c10::promoteTypes(higher, lower);
    return higher;
  }
  at::ScalarType dim_ = at::ScalarType::Undefined, zero_ = at::ScalarType::Undefined, wrapped_ = at::ScalarType::Undefined;
};

const c10::IValue kOne(int64_t{1});

/// Whether a place is the argument, or in a list the element, that is asked for.
bool is_at(const Place& place, int at, int element) { return place.arg == at && (place.element < 0 || place.element == element); }

TileArgument argument_of(const OpCall& call, int at, int element) {
  TileArgument found;
  if (at < 0) {
    found.is = TileArgument::Is::constant;
    found.value = &kOne;
    return found;
  }
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& slot = call.tensors[i];
    if (!is_at(slot.place, at, element)) continue;
    found.is = slot.host_scalar ? TileArgument::Is::host_scalar : TileArgument::Is::tensor;
    found.slot = &slot;
    found.index = static_cast<int>(i);
    return found;
  }
  for (const auto& payload : call.payloads) {
    if (!is_at(payload.place, at, element)) continue;
    found.is = TileArgument::Is::payload;
    found.payload = &payload;
    return found;
  }
  const auto& value = call.arguments[at];
  if (value.isInt() || value.isDouble() || value.isBool()) {
    found.is = TileArgument::Is::constant;
    found.value = &value;
  }
  return found;
}

std::optional<at::ScalarType> number_type(const TileArgument& argument) {
  if (argument.is == TileArgument::Is::payload) {
    switch (argument.payload->type) {
      case Payload::Type::integer:
        return at::kLong;
      case Payload::Type::boolean:
        return at::kBool;
      case Payload::Type::real:
        return at::kDouble;
      default:
        return std::nullopt;
    }
  }
  return argument.value->isInt() ? at::kLong : argument.value->isBool() ? at::kBool : at::kDouble;
}

bool integral(Type type) { return tiles::kind_of(type) == Kind::i64 || type == Type::b8; }

bool is_row_major(const TensorMeta& meta) {
  int64_t stride = 1;
  for (size_t d = meta.sizes.size(); d-- > 0;) {
    if (meta.sizes[d] != 1 && meta.strides[d] != stride) return false;
    stride *= meta.sizes[d];
  }
  return true;
}

/// Sets the row of an operation along `dim`. Whether there is one follows from sizes and dtypes alone, never from the strides of an
/// operand: a compiled graph may have other strides than eager, and its bits are eager's.
bool set_row(const TileCall& call, TilePlan& plan, int64_t dim) {
  const auto& result = call.result;
  const auto dims = static_cast<int64_t>(result.sizes.size());
  if (dims == 0 || (dim != dims - 1 && dim != -1) || result.sizes.back() < 2 || !is_row_major(result)) return false;
  if (plan.stored != plan.compute) return false;
  plan.row = result.sizes.back();
  return std::all_of(plan.operands.begin(), plan.operands.end(), [&](const TilePlan::Operand& operand) {
    return operand.argument.is == TileArgument::Is::tensor && operand.argument.slot->meta.sizes == result.sizes &&
           operand.type == plan.compute;
  });
}

/// Sets the rows of a norm: the trailing dimensions for which there is one mean.
bool set_norm(const TileCall& call, TilePlan& plan) {
  const int64_t elements = c10::multiply_integers(call.result.sizes);
  if (elements == 0 || call.more.size() != 2 || !is_row_major(call.result) || plan.stored != plan.compute) return false;
  const int64_t rows = c10::multiply_integers(call.more[0].meta.sizes);
  for (const auto& one : call.more) {
    if (tile_type(one.meta.dtype) != plan.compute || !is_row_major(one.meta)) return false;
  }
  plan.row = elements / rows;
  if (plan.row < 2) return false;
  for (size_t i = 0; i < plan.operands.size(); ++i) {
    auto& operand = plan.operands[i];
    if (i > 0 && operand.argument.is == TileArgument::Is::none) continue;
    if (operand.argument.is != TileArgument::Is::tensor || operand.type != plan.compute) return false;
    if (i == 0) continue;
    if (!is_row_major(operand.argument.slot->meta)) return false;
    operand.span = tiles::Span::row;
    operand.layout = {{plan.row}, {tiles::size_of(operand.type)}};
  }
  return true;
}

/// Picks the operation where arguments decide it. Takes operands away that it does not need.
bool choose(const TileCall& call, TilePlan& plan) {
  const auto& arguments = call.call->op.schema().arguments();
  auto constant = [&](std::string_view name) -> const c10::IValue& {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == name) return call.call->arguments[i];
    }
    TORCH_INTERNAL_ASSERT(false, call.call->op.operator_name(), " has no argument ", std::string(name));
  };
  switch (plan.op) {
    case Op::gelu:
      if (constant("approximate").toStringRef() == "tanh") plan.op = Op::gelu_tanh;
      return true;
    case Op::gelu_backward:
      if (constant("approximate").toStringRef() == "tanh") plan.op = Op::gelu_tanh_backward;
      return true;
    case Op::elu_backward:
      if (constant("is_result").toBool()) plan.op = Op::elu_backward_result;
      return true;
    case Op::clamp: {
      const bool low = plan.operands[1].argument.is != TileArgument::Is::none,
                 high = plan.operands[2].argument.is != TileArgument::Is::none;
      if (!low && !high) return false;
      if (low && high) return true;
      plan.op = low ? Op::maximum : Op::minimum;
      plan.operands.erase(plan.operands.begin() + (low ? 2 : 1));
      return true;
    }
    case Op::softmax:
    case Op::log_softmax:
      return !constant("half_to_float").toBool() && set_row(call, plan, constant("dim").toInt());
    case Op::softmax_backward:
    case Op::log_softmax_backward:
      return set_row(call, plan, constant("dim").toInt());
    case Op::normalize:
      return set_norm(call, plan);
    case Op::pow: {
      if (plan.compute == Type::f16) return true;  // ATen takes no exponent apart for half
      const auto exponent = plan.operands[1].argument;
      if (exponent.is == TileArgument::Is::payload || exponent.is == TileArgument::Is::constant) {
        plan.op = Op::pow_number;
        plan.numbers.push_back(exponent);
        plan.operands.pop_back();
      }
      return true;
    }
    default:
      return std::none_of(plan.operands.begin(), plan.operands.end(),
                          [](const auto& operand) { return operand.argument.is == TileArgument::Is::none; });
  }
}

}  // namespace

at::ScalarType number_dtype(const TileArgument& argument) { return *number_type(argument); }

int tile_elements(const OpCall& call, const TileSignature& signature) {
  if (!signature.foreach) return 1;
  std::vector<int> counts(call.arguments.size(), 0);
  for (const auto& slot : call.tensors) counts[slot.place.arg] += slot.place.element >= 0;
  for (const auto& payload : call.payloads) counts[payload.place.arg] += payload.place.element >= 0;
  int elements = 0;
  for (int count : counts) {
    if (count == 0) continue;
    if (elements != 0 && elements != count) return 0;
    elements = count;
  }
  return elements;
}

const TensorSlot* written_slot(const OpCall& call, const TileSignature& signature, int element) {
  for (const auto& slot : call.tensors) {
    if (is_at(slot.place, signature.written, element) && !slot.host_scalar) return &slot;
  }
  return nullptr;
}

std::optional<TilePlan> plan_tiles(const TileCall& call) {
  const auto& signature = *call.signature;
  const auto& row = *signature.row;
  const auto& result = call.result;
  if (!plain(result) || overlaps_itself(result) || result.sizes.size() > kMostDims) return std::nullopt;
  const auto order = memory_order(result);
  TilePlan plan{row.op, Type::f32, Type::f32, *tile_type(result.dtype), 0, *layout_over(result, result, order), {}, {}};

  Promotion promotion;
  for (size_t i = 0; i < signature.operands.size(); ++i) {
    TilePlan::Operand operand{argument_of(*call.call, signature.operands[i], call.element), {}, Type::b8, signature.masks[i], true};
    const auto& argument = operand.argument;
    if (argument.slot != nullptr) {
      const auto& meta = argument.slot->meta;
      if (!plain(meta)) return std::nullopt;
      operand.type = *tile_type(meta.dtype);
      if (operand.mask && operand.type != Type::b8) return std::nullopt;
      if (!operand.mask) promotion.add(meta);
      auto layout = layout_over(meta, result, order);
      if (!layout) return std::nullopt;
      operand.layout = *layout;
      operand.rounded = !((row.traits & TileRow::opmath) && meta.sizes.empty());
    } else if (argument.is != TileArgument::Is::none) {
      auto type = number_type(argument);
      if (!type || operand.mask) return std::nullopt;
      promotion.add_number(*type);
      operand.rounded = !(row.traits & TileRow::opmath) || (row.traits & TileRow::narrow_scalars);
    }
    plan.operands.push_back(operand);
  }

  auto common = row.rule == TileRule::own ? result.dtype : row.rule == TileRule::logical ? at::kBool : promotion.result();
  if (row.rule == TileRule::real && c10::isIntegralType(common, /*includeBool=*/true))
    common = c10::typeMetaToScalarType(c10::get_default_dtype());
  auto compute = tile_type(common);
  if (!compute) return std::nullopt;
  plan.compute = *compute;
  if (row.rule == TileRule::compare && plan.compute == Type::b8) plan.compute = Type::i64;
  plan.made = row.rule == TileRule::compare ? Type::b8 : plan.compute;

  for (int at : signature.numbers) {
    auto number = argument_of(*call.call, at, call.element);
    if (number.is != TileArgument::Is::payload && number.is != TileArgument::Is::constant) return std::nullopt;
    plan.numbers.push_back(number);
  }
  if (!choose(call, plan)) return std::nullopt;

  const Kind kind = tiles::kind_of(plan.compute);
  if (!tiles::has_function(plan.op, kind)) return std::nullopt;
  if (!tiles::converts(tiles::kind_of(plan.made), tiles::kind_of(plan.stored))) return std::nullopt;
  if (plan.stored == Type::b8 && plan.made != Type::b8) return std::nullopt;
  for (const auto& operand : plan.operands) {
    const auto& argument = operand.argument;
    if (argument.slot != nullptr && !operand.mask && !tiles::converts(tiles::kind_of(operand.type), kind)) return std::nullopt;
    if (argument.slot == nullptr && kind == Kind::i64 && *number_type(argument) == at::kDouble) return std::nullopt;
  }
  for (const auto& number : plan.numbers) {
    auto type = number_type(number);
    // What PyTorch refuses: `alpha` that is a bool, or real where the result is not.
    if (!type || *type == at::kBool || (integral(plan.compute) && *type == at::kDouble)) return std::nullopt;
  }
  return plan;
}

}  // namespace neuron

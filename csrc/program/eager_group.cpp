#include "csrc/program/eager_group.h"

#include <algorithm>

#include "csrc/program/fusion.h"

namespace neuron {
namespace {

/// The places of an eager call: storages are numbered by the slots that lead them, see Note [Words] in op_call.h.
TileCall eager_call(const OpCall& call, const TileSignature& signature) {
  TileCall made;
  made.call = &call;
  made.signature = &signature;
  auto bytes = [](const TensorSlot& slot) { return slot.meta.offset * static_cast<int64_t>(c10::elementSize(slot.meta.dtype)); };
  int words = 0;
  for (const auto& slot : call.tensors) {
    TilePlace place;
    if (!slot.host_scalar) {
      const auto& leader = call.tensors[slot.leader];
      place = {slot.leader, bytes(slot), {leader.word, bytes(slot) - bytes(leader)}};
    }
    words = std::max(words, slot.word + 2);
    made.tensors.push_back(place);
  }
  for (const auto& payload : call.payloads) words = std::max(words, payload.word + 2);
  for (int i = 0; i < words; ++i) made.words.push_back({i, 0});
  return made;
}

/// Where a fresh result lies; false: it is no fresh tensor.
bool locate(const Program& program, const ResultMeta& result, TensorMeta& meta, TilePlace& place) {
  if (result.kind != ResultMeta::Kind::fresh) return false;
  meta = result.meta;
  const int64_t offset = meta.offset * static_cast<int64_t>(c10::elementSize(meta.dtype));
  place = {static_cast<int>(program.calls[0].tensors.size()) + result.source, offset, {program.input_words + result.source, offset}};
  return true;
}

bool set_result(const Program& program, TileCall& tile_call) {
  const auto& call = program.calls[0];
  const auto& signature = *tile_call.signature;
  if (signature.written >= 0) {
    const auto* slot = written_slot(call, signature, tile_call.element);
    if (slot == nullptr) return false;
    tile_call.result = slot->meta;
    tile_call.result_place = tile_call.tensors[slot - call.tensors.data()];
    return true;
  }
  const size_t element = signature.foreach ? tile_call.element : 0;
  if (program.returns.empty() || program.returns[0].results.size() <= element) return false;
  if (!locate(program, program.returns[0].results[element], tile_call.result, tile_call.result_place)) return false;
  for (size_t i = 1; i < program.returns.size(); ++i) {
    auto& more = tile_call.more.emplace_back();
    if (program.returns[i].results.size() != 1 || !locate(program, program.returns[i].results[0], more.meta, more.place)) return false;
  }
  return true;
}

/// Copies between layouts that ATen moves in blocks: the bits are the same whoever moves them.
bool better_moved_by_aten(const TileGroup& group, const TileSignature& signature) {
  if (!(signature.row->traits & TileRow::copies)) return false;
  constexpr int64_t kShortRun = 16;
  return std::any_of(group.memories.begin(), group.memories.end(), [](const TileMemory& memory) {
    if (memory.contiguous() || memory.strides.back() == 0) return false;
    return memory.strides.back() != tiles::size_of(memory.type) || memory.sizes.back() < kShortRun;
  });
}

/// Whether a call that writes an argument can neither fail nor resize it, given that a row serves it.
bool sure_to_write(const OpCall& call, const TileSignature& signature, const TensorSlot& written) {
  const int element = written.place.element;
  const auto& arguments = call.op.schema().arguments();
  const bool in_place = call.op.schema().name().back() == '_';
  bool full = in_place;
  for (const auto& slot : call.tensors) {
    if (slot.place.element >= 0 && slot.place.element != element) continue;
    const auto& meta = slot.meta;
    const auto& operands = signature.operands;
    const auto operand = std::find(operands.begin(), operands.end(), slot.place.arg);
    // Broadcasting gives at least this, and not more, for else there would be no layout.
    if (operand != operands.end() && slot.place.arg != signature.written && meta.sizes == written.meta.sizes) full = true;
    if (arguments[slot.place.arg].name() == "value" && !meta.sizes.empty()) return false;
    if (signature.row->traits & TileRow::copies) continue;
    if (operand != operands.end() && signature.masks[operand - operands.begin()]) continue;
    // Kernels check dtypes in ways of their own.
    if (slot.host_scalar ? meta.dtype == at::kBool : meta.dtype != written.meta.dtype) return false;
  }
  return full;
}

}  // namespace

namespace {

std::optional<TileGroup> group_of(const Program& program, TileCall& tile_call) {
  const auto& call = program.calls[0];
  const auto& signature = *tile_call.signature;
  if (!set_result(program, tile_call)) return std::nullopt;
  if (signature.written >= 0) {
    // The first call has been run by ATen's kernel unless infer_written() knew better. It can be repeated only where its operands are still
    // there; else ATen's kernel serves the later calls too.
    const auto* written = written_slot(call, signature, tile_call.element);
    const bool shares = std::any_of(call.tensors.begin(), call.tensors.end(), [&](const TensorSlot& slot) {
      return &slot != written && !slot.host_scalar && slot.leader == written->leader;
    });
    const auto& operands = signature.operands;
    const bool is_operand = std::find(operands.begin(), operands.end(), signature.written) != operands.end();
    if ((shares || is_operand) && !sure_to_write(call, signature, *written)) return std::nullopt;
  }
  GroupBuilder builder;
  if (!builder.add(tile_call)) return std::nullopt;
  auto group = builder.finish();
  if (better_moved_by_aten(group, signature)) return std::nullopt;
  return group;
}

}  // namespace

std::vector<TileGroup> groups_of_one(const Program& program) {
  const auto& call = program.calls.at(0);
  const auto* signature = tile_signature(call.op);
  if (signature == nullptr) return {};
  auto tile_call = eager_call(call, *signature);
  std::vector<TileGroup> groups;
  const int elements = tile_elements(call, *signature);
  for (int i = 0; i < elements; ++i) {
    if (signature->foreach) tile_call.element = i;
    auto group = group_of(program, tile_call);
    if (!group) return {};
    groups.push_back(std::move(*group));
  }
  return groups;
}

bool infer_written(Program& program) {
  const auto& call = program.calls.at(0);
  const auto* signature = tile_signature(call.op);
  if (signature == nullptr || signature->written < 0 || !program.returns.empty()) return false;
  const int elements = tile_elements(call, *signature);
  for (int i = 0; i < elements; ++i) {
    const auto* written = written_slot(call, *signature, signature->foreach ? i : -1);
    if (written == nullptr || !sure_to_write(call, *signature, *written)) return false;
  }
  if (groups_of_one(program).empty()) return false;
  if (call.op.schema().returns().empty()) return true;
  if (signature->foreach) return false;  // out= lists
  const auto* written = written_slot(call, *signature, -1);
  ResultMeta result;
  result.kind = ResultMeta::Kind::argument;
  result.source = static_cast<int>(written - call.tensors.data());
  result.meta = written->meta;
  program.returns.push_back({false, {result}});
  return true;
}

}  // namespace neuron

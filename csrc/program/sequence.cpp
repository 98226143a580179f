#include "csrc/program/sequence.h"

#include <algorithm>
#include <string>

namespace neuron {
namespace {

void insert_sorted(std::vector<int>& set, int value) {
  auto at = std::lower_bound(set.begin(), set.end(), value);
  if (at == set.end() || *at != value) set.insert(at, value);
}

int64_t bytes_of(int64_t elements, const TensorMeta& meta) { return elements * static_cast<int64_t>(c10::elementSize(meta.dtype)); }

/// Whether a call does something besides filling the storages it makes.
bool has_effect(const SequenceCall& call) {
  return call.writes.empty() || call.call().op.operator_name().name.find("assert") != std::string::npos;
}

}  // namespace

SequenceCall make_call(std::shared_ptr<const Program> program, std::vector<Operand> tensors, const std::vector<Operand>& fresh,
                       const uint64_t* words) {
  const OpCall& call = program->calls[0];
  SequenceCall made;
  for (int w = 0; w < program->input_words; ++w) {
    WordSource& source = made.words.emplace_back();
    source.value = static_cast<int64_t>(words[w]);
  }
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& slot = call.tensors[i];
    const Operand& operand = tensors[i];
    if (slot.host_scalar) continue;
    if (slot.leader == static_cast<int>(i)) {
      made.words[slot.word] = {};
      if (operand.storage >= 0) made.words[slot.word] = {WordSource::Kind::address, operand.storage, operand.byte_offset};
    }
    if (operand.storage < 0) continue;
    if (slot.written) insert_sorted(made.writes, operand.storage);
    if (slot.read) insert_sorted(made.reads, operand.storage);
  }
  for (const Operand& storage : fresh) {
    WordSource& source = made.words.emplace_back();
    if (storage.storage < 0) continue;
    source = {WordSource::Kind::address, storage.storage, storage.byte_offset};
    insert_sorted(made.writes, storage.storage);
  }
  for (const auto& returned : program->returns) {
    auto& list = made.results.emplace_back();
    for (const auto& result : returned.results) {
      Operand operand;
      if (result.kind == ResultMeta::Kind::fresh)
        operand = fresh[result.source];
      else if (result.kind == ResultMeta::Kind::argument || result.kind == ResultMeta::Kind::view)
        operand = tensors[result.source];
      if (result.kind == ResultMeta::Kind::fresh || result.kind == ResultMeta::Kind::view)
        operand.byte_offset += bytes_of(result.meta.offset, result.meta);
      list.push_back(operand);
    }
  }
  made.tensors = std::move(tensors);
  made.program = std::move(program);
  return made;
}

void drop_unneeded_calls(Sequence& sequence) {
  const auto& storages = sequence.storages;
  std::vector<bool> needed(storages.size());
  for (size_t s = 0; s < storages.size(); ++s) needed[s] = storages[s].kind == SequenceStorage::Kind::input || storages[s].escapes;
  // From the end: what writes a needed storage is needed, and so is what that reads.
  std::vector<SequenceCall> kept;
  for (auto call = sequence.calls.rbegin(); call != sequence.calls.rend(); ++call) {
    if (!has_effect(*call) && std::none_of(call->writes.begin(), call->writes.end(), [&](int s) { return needed[s]; })) continue;
    for (int s : call->reads) needed[s] = true;
    for (int s : call->writes) needed[s] = true;
    kept.push_back(std::move(*call));
  }
  std::reverse(kept.begin(), kept.end());
  sequence.calls = std::move(kept);
}

void find_lifetimes(Sequence& sequence) {
  for (size_t c = 0; c < sequence.calls.size(); ++c) {
    auto touch = [&](int s) {
      auto& storage = sequence.storages[s];
      if (storage.first < 0) storage.first = static_cast<int>(c);
      storage.last = static_cast<int>(c);
    };
    for (int s : sequence.calls[c].reads) touch(s);
    for (int s : sequence.calls[c].writes) touch(s);
  }
}

}  // namespace neuron

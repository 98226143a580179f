#include "csrc/program/sequence_groups.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "csrc/program/fusion.h"

namespace neuron {
namespace {

constexpr int kMostCalls = 64;  // of a group: more would only push each other out of L1
constexpr int kReach = 12;      // how many steps back a call looks for a group to join

/// The call as fusion sees it, element by element; nothing when no row serves it.
std::vector<TileCall> tile_calls(const Sequence& sequence, const SequenceCall& from) {
  const auto& call = from.call();
  const auto* signature = tile_signature(call.op);
  if (signature == nullptr) return {};
  TileCall made;
  made.call = &call;
  made.signature = signature;
  auto place = [](const Operand& operand) {
    return TilePlace{operand.storage, operand.byte_offset, {operand.storage, operand.byte_offset}};
  };
  for (const auto& operand : from.tensors) made.tensors.push_back(place(operand));
  const int scalars = static_cast<int>(sequence.storages.size());
  for (const auto& word : from.words) {
    switch (word.kind) {
      case WordSource::Kind::constant:
        made.words.push_back({-1, word.value});
        break;
      case WordSource::Kind::scalar:
        made.words.push_back({scalars + 2 * word.index + static_cast<int>(word.value), 0});
        break;
      case WordSource::Kind::address:
        made.words.push_back({word.index, word.value});
        break;
      default:
        return {};  // random words are no operands of tiles
    }
  }
  std::vector<TileCall> calls;
  const int elements = tile_elements(call, *signature);
  for (int i = 0; i < elements; ++i) {
    if (signature->foreach) made.element = i;
    if (signature->written >= 0) {
      const auto* slot = written_slot(call, *signature, made.element);
      if (slot == nullptr) return {};
      made.result = slot->meta;
      made.result_place = made.tensors[slot - call.tensors.data()];
    } else {
      const auto& returns = from.program->returns;
      if (returns.empty() || static_cast<int>(returns[0].results.size()) <= i) return {};
      if (returns[0].results[i].kind != ResultMeta::Kind::fresh) return {};
      made.result = returns[0].results[i].meta;
      made.result_place = place(from.results.at(0).at(i));
      for (size_t k = 1; k < returns.size(); ++k) {
        if (returns[k].results.size() != 1 || returns[k].results[0].kind != ResultMeta::Kind::fresh) return {};
        made.more.push_back({returns[k].results[0].meta, place(from.results.at(k).at(0))});
      }
    }
    // Alone in a group it must be possible, so that a new step can always take it.
    if (!GroupBuilder().add(made)) return {};
    calls.push_back(made);
  }
  return calls;
}

/// What has to be placed in one step: a call, or an element of one. Storages once each.
struct Unit {
  int call = -1;
  std::vector<int> reads, writes;
  std::vector<int> shared;  ///< those of more than one number: a common one is a reason to be in one loop

  std::vector<int> touches() const {
    std::vector<int> all(reads);
    for (int storage : writes) {
      if (std::find(reads.begin(), reads.end(), storage) == reads.end()) all.push_back(storage);
    }
    return all;
  }
};

Unit unit_of(int index, const TileCall& call) {
  Unit unit{index, {}, {call.result_place.storage}, {call.result_place.storage}};
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& place = call.call->tensors[i].place;
    const int storage = call.tensors[i].storage;
    if (place.element >= 0 && place.element != call.element) continue;
    if (storage >= 0 && !call.call->tensors[i].meta.sizes.empty()) unit.shared.push_back(storage);
    if (storage >= 0 && std::find(unit.reads.begin(), unit.reads.end(), storage) == unit.reads.end()) unit.reads.push_back(storage);
  }
  if (unit.writes[0] < 0) unit.writes.clear();
  for (const auto& more : call.more) {
    if (more.place.storage >= 0) unit.writes.push_back(more.place.storage);
  }
  return unit;
}

class Grouping {
 public:
  explicit Grouping(const Sequence& sequence)
      : sequence_(sequence),
        last_read_(sequence.storages.size(), -1),
        last_write_(sequence.storages.size(), -1),
        touched_(sequence.storages.size(), 0) {}

  std::vector<SequenceGroup> run() {
    for (int i = 0; i < static_cast<int>(sequence_.calls.size()); ++i) {
      const auto& call = sequence_.calls[i];
      const auto parts = tile_calls(sequence_, call);
      for (const auto& part : parts) place(unit_of(i, part), &part);
      if (parts.empty()) place({i, call.reads, call.writes, {}}, nullptr);
    }
    merge_groups();
    std::vector<SequenceGroup> groups;
    for (auto& step : steps_) {
      if (!step.units.empty()) groups.push_back(finish(step));
    }
    return groups;
  }

 private:
  struct Step {
    std::vector<Unit> units;
    std::vector<TileCall> tile_calls;  ///< by unit; empty for a whole kernel
    std::unordered_set<int> reads, writes, shared;
    std::unique_ptr<GroupBuilder> builder;  ///< null: a whole kernel
  };

  void place(Unit unit, const TileCall* call) {
    // The unit may not run before this step: something there needs or makes what it writes, or makes what it reads.
    int earliest = 0;
    for (int storage : unit.reads) earliest = std::max(earliest, last_write_[storage]);
    for (int storage : unit.writes) earliest = std::max({earliest, last_write_[storage], last_read_[storage]});
    const int at = join(unit, call, earliest);
    for (int storage : unit.reads) last_read_[storage] = std::max(last_read_[storage], at);
    for (int storage : unit.writes) last_write_[storage] = std::max(last_write_[storage], at);
    for (int storage : unit.touches()) ++touched_[storage];
    auto& step = steps_[at];
    step.reads.insert(unit.reads.begin(), unit.reads.end());
    step.writes.insert(unit.writes.begin(), unit.writes.end());
    step.shared.insert(unit.shared.begin(), unit.shared.end());
    if (call != nullptr) step.tile_calls.push_back(*call);
    step.units.push_back(std::move(unit));
  }

  /// The step that takes the call: where what it needs is made, or one of the last few, or a new one. Calls that have nothing in common
  /// stay apart: they would only push each other out of L1.
  int join(const Unit& unit, const TileCall* call, int earliest) {
    const int end = static_cast<int>(steps_.size());
    auto takes = [&](int at) {
      auto& step = steps_[at];
      if (!step.builder || static_cast<int>(step.units.size()) >= kMostCalls) return false;
      const bool related = std::any_of(unit.shared.begin(), unit.shared.end(), [&](int storage) { return step.shared.count(storage) > 0; });
      return related && step.builder->add(*call);
    };
    Step step;
    if (call != nullptr) {
      if (earliest < end - kReach && takes(earliest)) return earliest;
      for (int at = std::max(earliest, end - kReach); at < end; ++at) {
        if (takes(at)) return at;
      }
      step.builder = std::make_unique<GroupBuilder>();
      step.builder->add(*call);
    }
    steps_.push_back(std::move(step));
    return end;
  }

  /// Moves groups down into later ones with which they share memory: an optimizer's update starts as one group for each of its tensors.
  void merge_groups() {
    std::unordered_map<int, std::vector<int>> groups_of;  // by storage
    for (int later = 0; later < static_cast<int>(steps_.size()); ++later) {
      if (!steps_[later].builder) continue;
      std::vector<int> earlier;
      for (int storage : steps_[later].shared) {
        auto& groups = groups_of[storage];
        earlier.insert(earlier.end(), groups.begin(), groups.end());
        groups.push_back(later);
      }
      std::sort(earlier.rbegin(), earlier.rend());
      earlier.erase(std::unique(earlier.begin(), earlier.end()), earlier.end());
      for (int group : earlier) merge(group, later);
    }
  }

  void merge(int earlier, int later) {
    auto &from = steps_[earlier], &to = steps_[later];
    if (from.units.empty() || static_cast<int>(from.units.size() + to.units.size()) > kMostCalls) return;
    auto touches = [](const std::unordered_set<int>& a, const std::unordered_set<int>& b) {
      return std::any_of(a.begin(), a.end(), [&](int storage) { return b.count(storage) > 0; });
    };
    for (int between = earlier + 1; between < later; ++between) {
      const auto& step = steps_[between];
      if (touches(step.writes, from.writes) || touches(step.writes, from.reads) || touches(step.reads, from.writes)) return;
    }
    auto builder = std::make_unique<GroupBuilder>();
    for (const auto* calls : {&from.tile_calls, &to.tile_calls}) {
      for (const auto& call : *calls) {
        if (!builder->add(call)) return;
      }
    }
    to.builder = std::move(builder);
    to.units.insert(to.units.begin(), from.units.begin(), from.units.end());
    to.tile_calls.insert(to.tile_calls.begin(), from.tile_calls.begin(), from.tile_calls.end());
    to.reads.merge(from.reads);
    to.writes.merge(from.writes);
    to.shared.merge(from.shared);
    from = Step();
  }

  SequenceGroup finish(Step& step) {
    SequenceGroup made;
    for (const auto& unit : step.units) made.calls.push_back(unit.call);
    std::sort(made.calls.begin(), made.calls.end());
    made.calls.erase(std::unique(made.calls.begin(), made.calls.end()), made.calls.end());
    const bool whole = step.units.size() == 1 && !tile_signature_is_foreach(step.units[0].call);
    if (!step.builder || whole) return made;  // a call alone runs as in eager
    // Fresh storages that no other step touches.
    std::vector<int> inside(sequence_.storages.size(), 0), own;
    for (const auto& unit : step.units) {
      for (int storage : unit.touches()) ++inside[storage];
    }
    for (size_t s = 0; s < inside.size(); ++s) {
      const auto& storage = sequence_.storages[s];
      if (storage.kind == SequenceStorage::Kind::fresh && !storage.escapes && inside[s] > 0 && inside[s] == touched_[s])
        own.push_back(static_cast<int>(s));
    }
    made.group = step.builder->finish(&own);
    made.internal = std::move(own);
    return made;
  }

  bool tile_signature_is_foreach(int call) const {
    const auto* signature = tile_signature(sequence_.calls[call].call().op);
    return signature != nullptr && signature->foreach;
  }

  const Sequence& sequence_;
  std::vector<Step> steps_;
  std::vector<int> last_read_, last_write_, touched_;  // by storage: steps; units that touch it
};

}  // namespace

std::vector<SequenceGroup> group_calls(const Sequence& sequence) { return Grouping(sequence).run(); }

}  // namespace neuron

// CompiledGraph: a function of tensors that becomes one launch per key. See docs/dev/program.md.
//
// Note [Keys of a CompiledGraph]
// Per tensor input: dtype, sizes, strides, conj/neg bits, which earlier input shares its storage and at which distance (and the storage
// offset itself, when the function may ask for it); values of integers, booleans, floats and strings; the flags of the eager key. A 0-dim
// CPU tensor is a scalar input: its dtype is key, its value is not, unless the recording could not tell where the value went.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/aten/recorder.h"
#include "csrc/program/program_target.h"

namespace neuron {

/// Counts of one graph since it was made.
struct GraphStats {
  size_t programs = 0;  ///< keys that are held now
  uint64_t hits = 0, misses = 0, evictions = 0;
  uint64_t replays = 0;                   ///< calls that were one launch
  uint64_t fallbacks = 0;                 ///< calls that ran node by node because what they do cannot be replayed
  std::vector<std::string> miss_reasons;  ///< which input differed from the key used last, and how
  std::map<std::string, uint64_t> fallback_reasons;
  // Of the Program that was launched last.
  int calls = 0, steps = 0, kernels = 0, groups = 0, fused_calls = 0;
  size_t temporary_bytes = 0, unwritten_bytes = 0;
};

class CompiledGraph {
 public:
  using Values = std::vector<c10::IValue>;

  /// `offsets_in_key`: the function may depend on the storage offset of an input (as_strided with an offset of its own).
  CompiledGraph(std::string name, bool offsets_in_key, size_t most_programs);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  class Run;

  /// One call. Either it was launched, and `results` holds what it returns; or the caller runs the function itself while the Run lives,
  /// then tells it the results. `unreadable`: why an input is no value that could be in a key; empty otherwise. Thread safe.
  std::unique_ptr<Run> start(const Values& inputs, std::string unreadable, Values* results);

  GraphStats stats() const;
  const std::string& name() const { return name_; }

 private:
  struct Entry;
  struct Key;
  using EntryPtr = c10::intrusive_ptr<Entry>;

  std::string read(const Values& inputs, Key& key) const;
  EntryPtr find(const Key& key);
  void insert(const Key& key, EntryPtr entry);
  void erase(std::list<EntryPtr>::iterator entry);
  static void bump_versions(const Entry& entry, const Values& inputs);
  using Words = c10::SmallVector<uint64_t, 64>;
  static void read_words(const Entry& entry, const Values& inputs, Words& words);
  void replay(Entry& entry, const Values& inputs, int device, Values& results);
  std::string difference(const Key& key) const;
  void note_miss(const std::string& reason) const;

  const std::string name_;
  const bool offsets_in_key_;
  const size_t most_programs_;
  mutable std::mutex mutex_;
  std::list<EntryPtr> entries_;  ///< latest use first
  std::unordered_multimap<uint64_t, std::list<EntryPtr>::iterator> by_hash_;
  std::vector<bool> keyed_scalars_;  ///< by input: a scalar input whose value is key after all
  GraphStats stats_;
};

/// A call that is not replayed: grad mode and autocast are off while it lives, and a Recorder may listen.
class CompiledGraph::Run {
 public:
  Run(CompiledGraph& graph, std::unique_ptr<Key> key, const Values& inputs, Stream* stream);
  ~Run();

  /// The function has returned `outputs`; null: something that no Program can return.
  void finish(const Values* outputs);

 private:
  void launch(const Entry& entry, const Values& outputs);
  void release(Executable* instead, c10::ArrayRef<uint64_t> words);

  CompiledGraph& graph_;
  std::unique_ptr<Key> key_;
  const Values inputs_;
  std::unique_ptr<Recorder> recorder_;
  Stream* holds_ = nullptr;  ///< where launches are held back, see ProgramTarget::hold_launches()
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace neuron

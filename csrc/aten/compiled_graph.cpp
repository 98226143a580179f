#include "csrc/aten/compiled_graph.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "csrc/aten/allocator.h"
#include "csrc/aten/device_tensor.h"
#include "csrc/aten/front_end.h"
#include "csrc/aten/generator.h"
#include "csrc/aten/graph.h"
#include "csrc/aten/guard.h"
#include "csrc/program/explain.h"
#include "csrc/runtime/settings.h"

namespace neuron {
namespace {

enum Tag : uint64_t { kTensor = 1, kHostTensor, kUndefined, kNone, kInt, kBool, kDouble, kString };

constexpr int kMostAttempts = 3;  // recordings of a key that other threads' work may have spoilt

const std::string kReachesOut = "a view that reaches beyond its input, whose storage is smaller than when it was recorded";

uint64_t bits(double value) {
  uint64_t word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

int64_t byte_offset(const at::TensorBase& tensor) { return tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()); }

/// Which input was the first on a storage. Open addressing: asked for each input at each call.
class StorageSet {
 public:
  explicit StorageSet(size_t most) {
    size_t size = 8;
    while (size < 2 * most) size *= 2;
    slots_.resize(size, {nullptr, 0});
  }
  size_t add(const c10::StorageImpl* storage, size_t input) {
    const size_t mask = slots_.size() - 1;
    for (size_t at = (reinterpret_cast<uintptr_t>(storage) >> 4) * 0x9e3779b97f4a7c15ULL >> 32 & mask;; at = (at + 1) & mask) {
      if (slots_[at].first == storage) return slots_[at].second;
      if (slots_[at].first != nullptr) continue;
      slots_[at] = {storage, input};
      return input;
    }
  }

 private:
  c10::SmallVector<std::pair<const c10::StorageImpl*, size_t>, 64> slots_;
};

}  // namespace

struct CompiledGraph::Key {
  std::vector<uint64_t> words;
  std::vector<uint32_t> marks;  ///< where each input's words begin
  uint64_t hash = 0;
  int device = -1;
  std::vector<int> scalars;  ///< inputs that are scalar inputs
};

/// What is known of one key.
struct CompiledGraph::Entry : c10::intrusive_ptr_target {
  Key key;
  std::shared_ptr<const Sequence> sequence;
  std::unique_ptr<LoadedSequence> loaded;  ///< null: cannot be replayed
  std::string reason;                      ///< why not
  int attempts = 0;
  std::vector<int> scalars;                             ///< by scalar input of the Sequence: which input
  std::vector<std::pair<int, uint32_t>> version_bumps;  ///< inputs that are written, and how often
};

CompiledGraph::CompiledGraph(std::string name, bool offsets_in_key, size_t most_programs)
    : name_(std::move(name)), offsets_in_key_(offsets_in_key), most_programs_(std::max<size_t>(1, most_programs)) {}

CompiledGraph::~CompiledGraph() {
  for (auto& entry : entries_) retire(std::move(entry));
}

/// Fills the key. Returns why there can be none, or nothing.
std::string CompiledGraph::read(const Values& inputs, Key& key) const {
  auto& words = key.words;
  words.reserve(8 * inputs.size() + 2);
  words.assign(2, 0);
  key.marks.reserve(inputs.size());
  StorageSet storages(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& value = inputs[i];
    key.marks.push_back(static_cast<uint32_t>(words.size()));
    if (value.isInt()) {
      words.insert(words.end(), {kInt, static_cast<uint64_t>(value.toInt())});
    } else if (value.isNone()) {
      words.push_back(kNone);
    } else if (value.isBool()) {
      words.push_back(kBool | uint64_t{value.toBool()} << 8);
    } else if (value.isDouble()) {
      words.insert(words.end(), {kDouble, bits(value.toDouble())});
    } else if (value.isString()) {
      words.insert(words.end(), {kString, std::hash<std::string>()(value.toStringRef())});
    } else {
      const auto& tensor = value.toTensor();
      const auto* impl = tensor.unsafeGetTensorImpl();
      if (!tensor.defined()) {
        words.push_back(kUndefined);
        continue;
      }
      const auto dtype = static_cast<uint64_t>(tensor.scalar_type());
      if (impl->is_python_dispatch()) return c10::str("input ", i, " is a tensor subclass");
      if (tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.dim() == 0) {
        words.push_back(kHostTensor | dtype << 8 | uint64_t{impl->is_wrapped_number()} << 32 | uint64_t{tensor.is_conj()} << 33 |
                        uint64_t{tensor.is_neg()} << 34);
        key.scalars.push_back(static_cast<int>(i));
        if (!keyed_scalars_.empty() && keyed_scalars_[i]) {
          uint64_t payload[2] = {0, 0};
          std::memcpy(payload, tensor.const_data_ptr(), tensor.element_size());
          words.insert(words.end(), payload, payload + 2);
        }
        continue;
      }
      if (!tensor.is_privateuseone() || tensor.layout() != at::kStrided)
        return c10::str("input ", i, " is on ", tensor.device(), " with layout ", tensor.layout());
      const int device = tensor.device().index();
      if (key.device >= 0 && key.device != device) return c10::str("inputs on neuron:", key.device, " and neuron:", device);
      key.device = device;
      words.push_back(kTensor | dtype << 8 | static_cast<uint64_t>(tensor.dim()) << 16 | uint64_t{tensor.is_conj()} << 32 |
                      uint64_t{tensor.is_neg()} << 33 | uint64_t{impl->is_wrapped_number()} << 34 |
                      uint64_t{tensor._is_zerotensor()} << 35 | uint64_t{tensor.is_inference()} << 36);
      for (int64_t size : tensor.sizes()) words.push_back(static_cast<uint64_t>(size));
      for (int64_t stride : tensor.strides()) words.push_back(static_cast<uint64_t>(stride));
      const size_t first = storages.add(tensor.storage().unsafeGetStorageImpl(), i);
      words.push_back(first);
      if (first != i) words.push_back(static_cast<uint64_t>(byte_offset(tensor) - byte_offset(inputs[first].toTensor())));
      if (offsets_in_key_) words.push_back(static_cast<uint64_t>(tensor.storage_offset()));
    }
  }
  if (key.device < 0) key.device = current_device();
  words[0] = static_cast<uint64_t>(key.device);
  words[1] = global_flags();
  key.hash = hash_key(words);
  return "";
}

CompiledGraph::EntryPtr CompiledGraph::find(const Key& key) {
  auto [begin, end] = by_hash_.equal_range(key.hash);
  for (auto at = begin; at != end; ++at) {
    if ((*at->second)->key.words != key.words) continue;
    entries_.splice(entries_.begin(), entries_, at->second);
    return *at->second;
  }
  return {};
}

void CompiledGraph::insert(const Key& key, EntryPtr entry) {
  if (find(key)) erase(entries_.begin());  // a failed attempt
  entry->key = key;
  entries_.push_front(std::move(entry));
  by_hash_.emplace(key.hash, entries_.begin());
  for (; entries_.size() > most_programs_; ++stats_.evictions) erase(std::prev(entries_.end()));
}

void CompiledGraph::erase(std::list<EntryPtr>::iterator entry) {
  auto [begin, end] = by_hash_.equal_range((*entry)->key.hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& one) { return one.second == entry; }));
  retire(std::move(*entry));
  entries_.erase(entry);
}

std::string CompiledGraph::difference(const Key& key) const {
  if (entries_.empty()) return "first call";
  const Key& before = entries_.front()->key;
  if (before.words[0] != key.words[0]) return c10::str("device: neuron:", before.words[0], " -> neuron:", key.words[0]);
  if (before.words[1] != key.words[1]) return "global flags: default dtype, deterministic mode or oneDNN switch changed";
  auto slice = [](const Key& of, size_t i) {
    const size_t end = i + 1 < of.marks.size() ? of.marks[i + 1] : of.words.size();
    return c10::ArrayRef<uint64_t>(of.words).slice(of.marks[i], end - of.marks[i]);
  };
  for (size_t i = 0; i < key.marks.size() && i < before.marks.size(); ++i) {
    auto a = slice(before, i), b = slice(key, i);
    if (a == b) continue;
    auto shown = [](c10::ArrayRef<uint64_t> words) -> std::string {
      if (words[0] == kInt) return c10::str(static_cast<int64_t>(words[1]));
      if ((words[0] & 0xff) == kBool) return words[0] >> 8 ? "True" : "False";
      if ((words[0] & 0xff) != kTensor) return words.size() > 1 ? "another value" : "another type";
      const size_t dim = words[0] >> 16 & 0xffff;
      std::vector<int64_t> sizes(words.begin() + 1, words.begin() + 1 + dim), strides(words.begin() + 1 + dim, words.begin() + 1 + 2 * dim);
      return c10::str(c10::toString(static_cast<at::ScalarType>(words[0] >> 8 & 0xff)), " sizes ", at::IntArrayRef(sizes), " strides ",
                      at::IntArrayRef(strides));
    };
    return c10::str("input ", i, ": ", shown(a), " -> ", shown(b));
  }
  return "the same inputs";
}

namespace {

/// Whether what was recorded stays inside of the inputs' storages: a view may have reached beyond its tensor, into a storage that was
/// larger.
bool inside_storages(const Sequence& sequence, const CompiledGraph::Values& inputs) {
  for (int s = 0; s < sequence.input_storages; ++s) {
    const auto& storage = sequence.storages[s];
    const auto& tensor = inputs[storage.input].toTensor();
    const int64_t base = byte_offset(tensor);
    if (base + storage.begin < 0 || base + storage.end > static_cast<int64_t>(tensor.storage().nbytes())) return false;
  }
  return true;
}

}  // namespace

void CompiledGraph::note_miss(const std::string& reason) const {
  if (recording().on()) recording().miss("compiled graph " + name_, reason);
}

std::unique_ptr<CompiledGraph::Run> CompiledGraph::start(const Values& inputs, std::string unreadable, Values* results) {
  auto key = std::make_unique<Key>();
  EntryPtr entry;
  {
    std::unique_lock lock(mutex_);
    if (unreadable.empty()) unreadable = read(inputs, *key);
    if (!unreadable.empty()) {
      ++stats_.fallbacks;
      ++stats_.fallback_reasons[unreadable];
      note_miss("runs node by node: " + unreadable);
      return std::make_unique<Run>(*this, nullptr, inputs, nullptr);
    }
    entry = find(*key);
  }
  // Inside of another graph's first run: that one records what this one does.
  const bool nested = Recorder::current() != nullptr;
  Stream* stream = current_stream(key->device);
  const bool fits = entry && entry->loaded && inside_storages(*entry->sequence, inputs);
  const bool replays = fits && !nested;
  const bool gives_up = entry && !entry->loaded && entry->attempts >= kMostAttempts;
  {
    std::lock_guard lock(mutex_);
    ++(entry ? stats_.hits : stats_.misses);
    if (replays) ++stats_.replays;
    if (!entry) {
      const auto reason = difference(*key);
      if (stats_.miss_reasons.size() < 1000) stats_.miss_reasons.push_back(reason);
      note_miss(reason);
    }
    if (gives_up || (entry && entry->loaded && !fits)) {
      const std::string& reason = gives_up ? entry->reason : kReachesOut;
      ++stats_.fallbacks;
      ++stats_.fallback_reasons[reason];
      note_miss("runs node by node: " + reason);
    }
  }
  if (replays) {
    replay(*entry, inputs, key->device, *results);
    return nullptr;
  }
  const bool records = !nested && !gives_up && stream->capture() == nullptr && (!entry || !entry->loaded);
  return std::make_unique<Run>(*this, records ? std::move(key) : nullptr, inputs, records ? stream : nullptr);
}

/// Views of one tensor share its version, so each input is brought to where it has to be, not moved by so much.
void CompiledGraph::bump_versions(const Entry& entry, const Values& inputs) {
  c10::SmallVector<uint32_t, 16> targets;
  for (const auto& [input, bumps] : entry.version_bumps)
    targets.push_back(inputs[input].toTensor().unsafeGetTensorImpl()->version_counter().current_version() + bumps);
  for (size_t i = 0; i < targets.size(); ++i) {
    auto* impl = inputs[entry.version_bumps[i].first].toTensor().unsafeGetTensorImpl();
    while (impl->version_counter().current_version() < targets[i]) impl->bump_version();
  }
}

/// The words that the inputs give, see Note [Words of a Sequence].
void CompiledGraph::read_words(const Entry& entry, const Values& inputs, Words& words) {
  const Sequence& sequence = *entry.sequence;
  for (int s = 0; s < sequence.input_storages; ++s) {
    const auto& tensor = inputs[sequence.storages[s].input].toTensor();
    auto* start = static_cast<char*>(const_cast<void*>(tensor.storage().unsafeGetStorageImpl()->data()));
    words.push_back(reinterpret_cast<uint64_t>(start == nullptr ? nullptr : start + byte_offset(tensor)));
  }
  for (int input : entry.scalars) {
    const auto& tensor = inputs[input].toTensor();
    uint64_t value[2] = {0, 0};
    std::memcpy(value, tensor.const_data_ptr(), tensor.element_size());
    words.append(value, value + 2);
  }
}

void CompiledGraph::replay(Entry& entry, const Values& inputs, int device, Values& results) {
  const Sequence& sequence = *entry.sequence;
  LoadedSequence& loaded = *entry.loaded;
  Stream* stream = current_stream(device);
  auto& allocator = NeuronAllocator::get();
  const c10::Device place(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));

  Words words;
  read_words(entry, inputs, words);
  if (sequence.draws > 0) {
    const auto [seed, offset] = generator_or_default(std::nullopt, device)->reserve(sequence.draws);
    words.append({seed, offset});
  }
  auto make_storage = [&](size_t bytes) {
    c10::DataPtr data =
        bytes == 0 ? c10::DataPtr(nullptr, place) : allocator.make_data_ptr(allocator.allocate_block(device, stream, bytes));
    return c10::Storage(
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), &allocator, true));
  };
  c10::SmallVector<c10::Storage, 16> fresh(sequence.storages.size());
  for (size_t s = 0; s < sequence.storages.size(); ++s) {
    if (!sequence.storages[s].escapes) continue;
    fresh[s] = make_storage(sequence.storages[s].bytes);
    words.push_back(reinterpret_cast<uint64_t>(fresh[s].mutable_data()));
  }
  // The block is free again for the host once the launch is in the queue: whoever gets it next runs later on this stream.
  c10::DataPtr temporaries;
  if (loaded.temporary_bytes > 0) temporaries = allocator.make_data_ptr(allocator.allocate_block(device, stream, loaded.temporary_bytes));
  words.push_back(reinterpret_cast<uint64_t>(temporaries.get()));

  if (!loaded.serial) set_compute_threads(at::get_num_threads());
  stream->launch(with_call_site(loaded, *stream), words.data(), words.size());
  if (Graph* graph = Graph::of(*stream)) [[unlikely]] {
    const int seed = sequence.draws > 0 ? sequence.seed_word() : -1;
    graph->note_launch(c10::intrusive_ptr<Entry>::reclaim_copy(&entry), seed, seed + 1);
  }
  counters().launches.fetch_add(1, std::memory_order_relaxed);
  counters().compiled.count(sequence.calls.size(), loaded.fused_calls, loaded.unwritten_bytes);

  bump_versions(entry, inputs);
  for (const auto& result : sequence.results) {
    switch (result.kind) {
      case SequenceResult::Kind::none:
        results.emplace_back();
        break;
      case SequenceResult::Kind::constant:
        results.push_back(result.value);
        break;
      case SequenceResult::Kind::input:
        results.push_back(inputs[result.index]);
        break;
      case SequenceResult::Kind::same:
        results.push_back(results[result.index]);
        break;
      case SequenceResult::Kind::tensor: {
        const auto item = static_cast<int64_t>(c10::elementSize(result.meta.dtype));
        const int s = result.operand.storage;
        if (s < 0) {
          results.emplace_back(make_device_tensor(make_storage(0), result.meta, result.operand.byte_offset / item));
        } else if (s < sequence.input_storages) {
          const auto& base = inputs[sequence.storages[s].input].toTensor();
          results.emplace_back(make_device_tensor(base.storage(), result.meta, (byte_offset(base) + result.operand.byte_offset) / item));
        } else {
          results.emplace_back(make_device_tensor(fresh[s], result.meta, result.operand.byte_offset / item));
        }
        break;
      }
    }
  }
  if (settings().launch_blocking) [[unlikely]]
    stream->synchronize();
}

GraphStats CompiledGraph::stats() const {
  std::lock_guard lock(mutex_);
  GraphStats stats = stats_;
  stats.programs = entries_.size();
  for (const auto& entry : entries_) {
    if (!entry->loaded) continue;
    const auto& loaded = *entry->loaded;
    stats.calls = static_cast<int>(entry->sequence->calls.size());
    stats.kernels = loaded.kernels;
    stats.groups = loaded.groups;
    stats.steps = loaded.kernels + loaded.groups;
    stats.fused_calls = loaded.fused_calls;
    stats.temporary_bytes = loaded.temporary_bytes;
    stats.unwritten_bytes = loaded.unwritten_bytes;
    break;
  }
  return stats;
}

// ---- Run ----

CompiledGraph::Run::Run(CompiledGraph& graph, std::unique_ptr<Key> key, const Values& inputs, Stream* stream)
    : graph_(graph), key_(std::move(key)), inputs_(inputs) {
  if (!key_) return;
  recorder_ = std::make_unique<Recorder>(graph.name_, inputs_, *stream);
  if (program_target().hold_launches(*stream)) holds_ = stream;
}

namespace {

/// Takes the place of launches that are not to be made.
class Nothing final : public Executable {
 public:
  void run(const uint64_t*) override {}
  const char* name() const override { return "nothing"; }
};

}  // namespace

CompiledGraph::Run::~Run() {
  try {
    release(nullptr, {});
  } catch (const std::exception& error) {
    TORCH_WARN("The launches of compiled graph ", graph_.name_, ", whose first run failed, could not be made: ", error.what());
  }
}

void CompiledGraph::Run::release(Executable* instead, c10::ArrayRef<uint64_t> words) {
  if (!holds_) return;
  program_target().release_launches(*std::exchange(holds_, nullptr), instead, words);
}

/// Makes the launches that the target has held back, as one.
void CompiledGraph::Run::launch(const Entry& entry, const Values& outputs) {
  if (!holds_) return;
  const Sequence& sequence = *entry.sequence;
  Words words;
  read_words(entry, inputs_, words);
  const auto drawn = recorder_->drawn_from();
  if (sequence.draws > 0 && !drawn) return release(nullptr, {});
  if (sequence.draws > 0) words.append({drawn->first, drawn->second});
  for (int s = sequence.input_storages; s < static_cast<int>(sequence.storages.size()); ++s) {
    if (!sequence.storages[s].escapes) continue;
    for (size_t r = 0; r < outputs.size(); ++r) {
      if (sequence.results[r].kind != SequenceResult::Kind::tensor || sequence.results[r].operand.storage != s) continue;
      words.push_back(reinterpret_cast<uint64_t>(outputs[r].toTensor().storage().data()));
      break;
    }
  }
  c10::DataPtr temporaries;
  if (const size_t bytes = entry.loaded->temporary_bytes; bytes > 0) {
    auto& allocator = NeuronAllocator::get();
    temporaries = allocator.make_data_ptr(allocator.allocate_block(key_->device, holds_, bytes));
  }
  words.push_back(reinterpret_cast<uint64_t>(temporaries.get()));
  release(entry.loaded.get(), words);
}

void CompiledGraph::Run::finish(const Values* outputs) {
  if (!recorder_) return;
  if (!outputs) recorder_->stop("a result that is neither a tensor nor an integer");
  auto sequence = recorder_->finish(outputs ? *outputs : Values());
  auto entry = c10::make_intrusive<Entry>();
  entry->reason = recorder_->reason();
  if (sequence) {
    entry->sequence = sequence;
    try {
      entry->loaded = program_target().load(entry->sequence, key_->device);
    } catch (const c10::NotImplementedError& error) {  // the target runs its calls, but not as one
      entry->reason = error.what_without_backtrace();
      sequence = nullptr;
    } catch (...) {  // the graph has failed as a whole
      static Nothing nothing;
      release(&nothing, {});
      throw;
    }
    entry->scalars = key_->scalars;
    const auto& bumps = recorder_->version_bumps();
    for (size_t i = 0; i < bumps.size(); ++i) {
      if (bumps[i] > 0) entry->version_bumps.emplace_back(static_cast<int>(i), bumps[i]);
    }
  }
  if (sequence)
    launch(*entry, *outputs);
  else
    release(nullptr, {});
  const auto keyed = recorder_->keyed_scalars();
  recorder_.reset();

  std::lock_guard lock(graph_.mutex_);
  if (!sequence) {
    ++graph_.stats_.fallbacks;
    ++graph_.stats_.fallback_reasons[entry->reason];
    graph_.note_miss("runs node by node: " + entry->reason);
  }
  bool more_keyed = false;
  for (size_t s = 0; s < keyed.size() && sequence; ++s) {
    auto& flags = graph_.keyed_scalars_;
    flags.resize(inputs_.size());
    if (!keyed[s] || flags[key_->scalars[s]]) continue;
    flags[key_->scalars[s]] = true;
    more_keyed = true;
  }
  if (more_keyed) {  // the key, from now on
    Key key;
    if (!graph_.read(inputs_, key).empty()) return retire(std::move(entry));
    *key_ = std::move(key);
  }
  const auto before = graph_.find(*key_);
  if (before && before->loaded) return retire(std::move(entry));  // another thread was faster
  entry->attempts = before ? before->attempts + 1 : 1;
  graph_.insert(*key_, std::move(entry));
}

}  // namespace neuron

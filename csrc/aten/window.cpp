#include "csrc/aten/window.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <list>
#include <memory>
#include <unordered_map>

#include "csrc/aten/allocator.h"
#include "csrc/aten/guard.h"
#include "csrc/aten/window_kernels.h"
#include "csrc/nki/launches.h"
#include "csrc/program/explain.h"
#include "csrc/runtime/executable.h"

namespace neuron {
namespace {

constexpr size_t kMostCalls = 128;                  // of a window
constexpr size_t kFewestCalls = 16;                 // before it may choose its end
constexpr uint64_t kMostBytes = uint64_t{2} << 30;  // that its calls may touch: a record is run to its end, and Ctrl-C waits for that
constexpr uint64_t kEnds = 15;                      // one place in 16 is an end
constexpr int kCallBits = 16;                       // of Block::made_by: which fresh storage of the window; the rest is the window's number
constexpr size_t kMostPrograms = 1024;              // of a device
constexpr uint64_t kBuildAfter = 2;                 // times that a window has to be seen
constexpr int kBlockAttempts = 3;

/// The lock of a window, taken without keeping the GIL from a holder that waits for it.
class WindowLock {
 public:
  /// Not taken (see owns()) when the calling thread runs the streams' work and the holder may wait for that.
  explicit WindowLock(std::recursive_mutex& mutex) : lock_(mutex, std::try_to_lock) {
    if (lock_.owns_lock() || runs_streams()) return;
    HostWaitScope wait;
    lock_.lock();
  }
  bool owns() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

/// The lock of a WindowProgram that may be built by another thread, which may want the GIL for that.
class BuildingLock {
 public:
  explicit BuildingLock(std::mutex& mutex) : lock_(mutex, std::try_to_lock) {
    if (lock_.owns_lock()) return;
    HostWaitScope wait;
    lock_.lock();
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

/// A window as it is: its calls one after another. Deletes itself.
class CallsInOrder final : public Executable {
 public:
  explicit CallsInOrder(EagerWindow::Calls calls) : calls_(std::move(calls)) {
    serial = calls_.serial;
    this->calls = static_cast<uint32_t>(calls_.entries.size());
  }

  void run(const uint64_t*) override {
    std::unique_ptr<CallsInOrder> self(this);
    std::exception_ptr first;
    const uint64_t* words = calls_.words.data();
    for (const auto& entry : calls_.entries) {
      try {
        entry->executable->run(words);
      } catch (...) {
        if (!first) first = std::current_exception();
      }
      words += entry->program->input_words + static_cast<int>(entry->program->fresh.size());
    }
    if (first) std::rethrow_exception(first);
  }
  const char* name() const override { return "window"; }

 private:
  const EagerWindow::Calls calls_;
};

/// A window that was seen before.
struct WindowProgram : c10::intrusive_ptr_target {
  std::vector<uint64_t> key;
  uint64_t hash = 0, seen = 1;  ///< `seen` belongs to the cache's lock
  std::mutex building;
  std::unique_ptr<LoadedSequence> loaded;              ///< null until it is built
  bool refused = false;                                ///< the target has no way to run it as one
  std::shared_ptr<WindowWithKernels> with_kernels;     ///< null: the search has found none
  uint64_t searched = 0;                               ///< the search's version then
  std::vector<c10::intrusive_ptr<CacheEntry>> owners;  ///< keep the ids in the key theirs
};

/// The windows seen on one device, the latest use first.
class WindowCache {
 public:
  static WindowCache& of(int device) {
    static auto* all = new std::array<WindowCache, 128>;
    return (*all)[device];
  }

  /// The program with this key, or a new one; and how often it was met.
  std::pair<c10::intrusive_ptr<WindowProgram>, uint64_t> meet(const std::vector<uint64_t>& key, const EagerWindow::Calls& calls) {
    const uint64_t hash = hash_key(key);
    std::lock_guard lock(mutex_);
    auto [begin, end] = by_hash_.equal_range(hash);
    for (auto at = begin; at != end; ++at) {
      if ((*at->second)->key != key) continue;
      programs_.splice(programs_.begin(), programs_, at->second);
      return {programs_.front(), ++programs_.front()->seen};
    }
    auto program = c10::make_intrusive<WindowProgram>();
    program->key = key;
    program->hash = hash;
    program->owners = calls.entries;
    programs_.push_front(program);
    by_hash_.emplace(hash, programs_.begin());
    if (programs_.size() > kMostPrograms) evict();
    return {program, 1};
  }

 private:
  void evict() {
    const auto last = std::prev(programs_.end());
    auto [begin, end] = by_hash_.equal_range((*last)->hash);
    by_hash_.erase(std::find_if(begin, end, [&](const auto& one) { return one.second == last; }));
    retire(std::move(*last));
    programs_.erase(last);
  }

  std::mutex mutex_;
  std::list<c10::intrusive_ptr<WindowProgram>> programs_;
  std::unordered_multimap<uint64_t, std::list<c10::intrusive_ptr<WindowProgram>>::iterator> by_hash_;
};

/// Visits the first word of each pair of words that is no address: the scalar inputs of a window's Sequence, in their order.
template <class Visit>
void for_each_payload(const OpCall& call, Visit visit) {
  for (const auto& slot : call.tensors)
    if (slot.host_scalar) visit(slot.word);
  for (const auto& payload : call.payloads) visit(payload.word);
}

/// How the tensors of a window share memory, independent of where it lies.
class Topology {
 public:
  explicit Topology(const EagerWindow::Calls& calls, std::vector<bool> alive) : calls_(calls), alive_(std::move(alive)) {
    find_areas();
    number();
  }

  const std::vector<uint64_t>& key() const { return key_; }
  /// Begin of each storage that is not a temporary, in the order of their first use.
  const std::vector<uint64_t>& bases() const { return bases_; }
  bool overlaps(uint64_t begin, uint64_t end) const {
    return std::any_of(areas_.begin(), areas_.end(), [&](const auto& area) { return area.begin < end && begin < area.end; });
  }
  std::shared_ptr<Sequence> sequence() const;

  /// Visits the fresh storages of the window that are these storages of its Sequence, all temporaries.
  template <class Visit>
  void for_each_fresh(const std::vector<int>& storages, Visit visit) const {
    for (size_t k = 0; k < fresh_.size(); ++k) {
      const int storage = static_cast<int>(bases_.size()) + (-2 - fresh_[k].storage);
      if (fresh_[k].storage < -1 && std::find(storages.begin(), storages.end(), storage) != storages.end()) visit(k);
    }
  }

 private:
  void find_areas();
  void number();
  Operand locate(uint64_t address, int fresh);
  void add(const Operand& operand) {
    key_.push_back(static_cast<uint64_t>(operand.storage));
    key_.push_back(static_cast<uint64_t>(operand.byte_offset));
  }

  const EagerWindow::Calls& calls_;
  const std::vector<bool> alive_;
  std::vector<EagerWindow::Span> areas_;  ///< disjoint, ascending: what is not a temporary
  std::vector<int> area_numbers_;
  std::vector<uint64_t> key_, bases_;
  std::vector<Operand> references_, fresh_;  ///< temporaries: storage -2 - n
  int temporaries_ = 0;
};

void Topology::find_areas() {
  auto& spans = areas_;
  for (const auto& reference : calls_.references) {
    if (reference.address != 0 && reference.fresh < 0) spans.push_back(reference.storage);
  }
  for (size_t k = 0; k < calls_.fresh.size(); ++k) {
    if (alive_[k] && calls_.fresh[k].block != nullptr) spans.push_back(calls_.fresh[k].storage);
  }
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (const auto& span : spans) {
    if (kept > 0 && span.begin < spans[kept - 1].end)
      spans[kept - 1].end = std::max(spans[kept - 1].end, span.end);
    else
      spans[kept++] = span;
  }
  spans.resize(kept);
  area_numbers_.assign(kept, -1);
}

Operand Topology::locate(uint64_t address, int fresh) {
  if (address == 0) return {};
  if (fresh >= 0 && !alive_[fresh]) {
    const auto& operand = fresh_[fresh];
    return {operand.storage, static_cast<int64_t>(address - calls_.fresh[fresh].storage.begin)};
  }
  auto after = std::upper_bound(areas_.begin(), areas_.end(), address, [](uint64_t at, const auto& area) { return at < area.begin; });
  const auto area = static_cast<size_t>(after - areas_.begin()) - 1;
  if (area_numbers_[area] < 0) {
    area_numbers_[area] = static_cast<int>(bases_.size());
    bases_.push_back(areas_[area].begin);
  }
  return {area_numbers_[area], static_cast<int64_t>(address - areas_[area].begin)};
}

void Topology::number() {
  size_t reference = 0;
  key_.reserve(4 * calls_.references.size() + 2 * calls_.fresh.size() + calls_.entries.size());
  for (const auto& entry : calls_.entries) {
    key_.push_back(entry->id);
    const OpCall& call = entry->program->calls[0];
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      if (call.tensors[i].host_scalar || call.tensors[i].leader != static_cast<int>(i)) continue;
      const auto& one = calls_.references[reference++];
      references_.push_back(locate(one.address, one.fresh));
      add(references_.back());
    }
    for (size_t f = 0; f < entry->program->fresh.size(); ++f) {
      const size_t k = fresh_.size();
      const bool temporary = calls_.fresh[k].block != nullptr && !alive_[k];
      fresh_.emplace_back();
      if (temporary)
        fresh_[k].storage = -2 - temporaries_++;
      else
        fresh_[k] = locate(calls_.fresh[k].storage.begin, static_cast<int>(k));
      add(fresh_[k]);
    }
  }
}

std::shared_ptr<Sequence> Topology::sequence() const {
  auto sequence = std::make_shared<Sequence>();
  sequence->name = c10::str("window of ", calls_.entries.size(), " calls");
  sequence->input_storages = static_cast<int>(bases_.size());
  sequence->storages.resize(bases_.size() + temporaries_);
  for (size_t s = 0; s < bases_.size(); ++s) sequence->storages[s].kind = SequenceStorage::Kind::input;
  auto settled = [&](Operand operand) {
    if (operand.storage < -1) operand.storage = static_cast<int>(bases_.size()) + (-2 - operand.storage);
    return operand;
  };
  size_t reference = 0, fresh = 0;
  const uint64_t* words = calls_.words.data();
  for (const auto& entry : calls_.entries) {
    const Program& program = *entry->program;
    const OpCall& call = program.calls[0];
    std::vector<Operand> tensors(call.tensors.size()), made;
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      const auto& slot = call.tensors[i];
      if (slot.host_scalar) continue;
      if (slot.leader == static_cast<int>(i)) {
        tensors[i] = settled(references_[reference++]);
      } else {
        tensors[i] = tensors[slot.leader];
        const auto distance = slot.meta.offset - call.tensors[slot.leader].meta.offset;
        tensors[i].byte_offset += distance * static_cast<int64_t>(c10::elementSize(slot.meta.dtype));
      }
    }
    for (const auto& storage : program.fresh) {
      made.push_back(settled(fresh_[fresh++]));
      if (made.back().storage >= sequence->input_storages) sequence->storages[made.back().storage].bytes = storage.bytes;
    }
    SequenceCall recorded = make_call(entry->program, std::move(tensors), made, words);
    recorded.executable = entry->executable.get();
    recorded.owner = entry;
    for_each_payload(call, [&](int word) {
      for (int half = 0; half < 2; ++half) recorded.words[word + half] = {WordSource::Kind::scalar, sequence->scalars, half};
      ++sequence->scalars;
    });
    sequence->calls.push_back(std::move(recorded));
    words += program.input_words + static_cast<int>(program.fresh.size());
  }
  find_lifetimes(*sequence);
  return sequence;
}

/// What stands for the window now that kernels replace some of its calls; null: nothing does, or the numbers of this launch are others.
/// `words`: of a launch, without temporaries.
std::shared_ptr<WindowWithKernels> with_kernels(WindowProgram& program, const Topology& topology, const std::vector<uint64_t>& words,
                                                int device) {
  const uint64_t version = kernel_search_version.load(std::memory_order_acquire);
  if (version == 0) [[likely]]
    return nullptr;
  const size_t inputs = topology.bases().size();
  BuildingLock lock(program.building);
  // The search takes Python's lock, for which nobody may wait who runs streams.
  if (program.searched != version && !runs_streams()) {
    program.searched = version;
    program.with_kernels = nullptr;
    const auto sequence = topology.sequence();
    const std::vector<uint64_t> scalars(words.begin() + static_cast<std::ptrdiff_t>(inputs), words.end());
    auto found = kernel_search->find(*sequence, scalars);
    if (!found.empty()) program.with_kernels = std::make_shared<WindowWithKernels>(*sequence, std::move(found), scalars, device);
  }
  const bool usable = program.searched == version && program.with_kernels && program.with_kernels->fits(words.data() + inputs);
  return usable && !nki::Launches::get().closed() ? program.with_kernels : nullptr;
}

EagerWindow::Span span_of(const Block& block) {
  const auto begin = reinterpret_cast<uint64_t>(block.data);
  return {begin, begin + block.size};
}

std::atomic<uint64_t> last_epoch{0};

}  // namespace

bool set_adaptive_eager(bool on) {
  const bool before = adaptive_eager().exchange(on);
  for (int device = 0; device < visible_devices(); ++device) {
    for_each_stream(device, [](Stream& stream) { stream.close_window(); });
  }
  return before;
}

EagerWindow& EagerWindow::of(Stream& stream) {
  if (Window* window = stream.attached_window.load(std::memory_order_acquire)) [[likely]]
    return static_cast<EagerWindow&>(*window);
  auto* made = new EagerWindow(stream);
  Window* before = nullptr;
  if (stream.attached_window.compare_exchange_strong(before, made)) return *made;
  delete made;
  return static_cast<EagerWindow&>(*before);
}

void EagerWindow::append(CacheEntry& entry, const CallReader& reader, c10::ArrayRef<uint64_t> words, c10::ArrayRef<Block*> fresh) {
  WindowLock lock(mutex_);
  // A kernel that calls back into the device; the holder's own record comes first or later, as it would in eager.
  if (!lock.owns() || closing_) {
    stream_.launch_window(*entry.executable, words.data(), words.size());
    return;
  }
  if (calls_.entries.empty()) {
    epoch_ = ++last_epoch;
    stream_.open_window(this);
  }
  const OpCall& call = entry.program->calls[0];
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& slot = call.tensors[i];
    if (slot.host_scalar || slot.leader != static_cast<int>(i)) continue;
    const uint64_t address = words[slot.word];
    Reference reference{address, {}, -1};
    if (address != 0) {
      const auto& pointer = reader.tensor(i).storage().unsafeGetStorageImpl()->data_ptr();
      if (const Block* block = NeuronAllocator::block_of(pointer)) {
        reference.storage = span_of(*block);
        if (block->made_by >> kCallBits == epoch_) reference.fresh = static_cast<int>(block->made_by & ((1 << kCallBits) - 1));
      } else {
        calls_.foreign = true;
      }
    }
    calls_.references.push_back(reference);
  }
  for (Block* block : fresh) {
    Fresh one{block, 0, {}};
    if (block != nullptr) {
      block->made_by = one.made_by = epoch_ << kCallBits | calls_.fresh.size();
      one.storage = span_of(*block);
    }
    calls_.fresh.push_back(one);
  }
  calls_.words.insert(calls_.words.end(), words.begin(), words.end());
  calls_.serial = calls_.serial && entry.executable->serial;
  calls_.bytes += entry.bytes;
  calls_.entries.push_back(c10::intrusive_ptr<CacheEntry>::reclaim_copy(&entry));
  if (ends_here(entry)) close_locked();
}

/// See Note [Life of a window]. Not after pointwise calls, which may fuse with what comes next.
bool EagerWindow::ends_here(const CacheEntry& last) {
  constexpr int kShift = 21;  // three shifts push a signature out
  recent_ = recent_ << kShift ^ (last.signature & ((1u << kShift) - 1));
  if (calls_.entries.size() >= kMostCalls || calls_.bytes >= kMostBytes || calls_.fresh.size() >= (1u << kCallBits) - 1) return true;
  if (calls_.entries.size() < kFewestCalls || last.fuses) return false;
  return ((recent_ * 0x9e3779b97f4a7c15ULL) >> 60 & kEnds) == 0;
}

void EagerWindow::close() {
  WindowLock lock(mutex_);
  if (lock.owns() && !closing_) close_locked();
}

void EagerWindow::close_locked() {
  if (calls_.entries.empty()) return;
  Calls calls;
  std::swap(calls, calls_);
  closing_ = true;
  counters().closed_windows.fetch_add(1, std::memory_order_relaxed);
  bool launched = false;
  std::exception_ptr problem;
  try {
    launched = !calls.foreign && calls.entries.size() > 1 && launch_program(calls);
  } catch (...) {
    problem = std::current_exception();
  }
  if (!launched) launch_calls(std::move(calls));
  counters().launches.fetch_add(1, std::memory_order_relaxed);
  closing_ = false;
  stream_.forget_window();
  if (problem) std::rethrow_exception(problem);
}

void EagerWindow::launch_calls(Calls calls) {
  auto* executable = new CallsInOrder(std::move(calls));
  stream_.launch_window(*executable, nullptr, 0);
}

namespace {

/// The window's Program, if it has one by now and can run it now; else null.
c10::intrusive_ptr<WindowProgram> find_program(const Topology& topology, const EagerWindow::Calls& calls, int device) {
  const auto [program, seen] = WindowCache::of(device).meet(topology.key(), calls);
  if (seen < kBuildAfter) return {};
  if (BuildingLock lock(program->building); !program->loaded) {
    if (program->refused) return {};
    try {
      program->loaded = program_target().load(std::shared_ptr<const Sequence>(topology.sequence()), device);
      program->loaded->calls = static_cast<uint32_t>(calls.entries.size());
    } catch (const c10::NotImplementedError&) {  // its calls can be run one by one all the same
      program->refused = true;
      return {};
    }
  }
  return program->loaded->ready() ? program : c10::intrusive_ptr<WindowProgram>();
}

/// The block of a window's temporaries; null when there is no room, or unless it may raise it, none below the peak of plain eager's memory.
c10::DataPtr allocate_temporaries(size_t bytes, const Topology& topology, Stream& stream, bool may_raise_peak) {
  auto& allocator = NeuronAllocator::get();
  auto& cache = allocator.cache(stream.device);
  std::vector<c10::DataPtr> held;
  try {
    // Inputs that were freed may lie in free memory: not there.
    for (int attempt = 0; attempt < kBlockAttempts && (may_raise_peak || cache.is_below_peak(bytes)); ++attempt) {
      Block* block = allocator.allocate_block(stream.device, &stream, bytes);
      held.push_back(allocator.make_data_ptr(block));
      const auto span = span_of(*block);
      if (!topology.overlaps(span.begin, span.end)) return std::move(held.back());
    }
  } catch (const c10::OutOfMemoryError&) {  // then there is none
  }
  return {};
}

/// All words but the last, the block of temporaries.
std::vector<uint64_t> words_of(const EagerWindow::Calls& calls, const Topology& topology) {
  std::vector<uint64_t> words(topology.bases());
  const uint64_t* at = calls.words.data();
  for (const auto& entry : calls.entries) {
    const Program& one = *entry->program;
    for_each_payload(one.calls[0], [&](int word) { words.insert(words.end(), at + word, at + word + 2); });
    at += one.input_words + static_cast<int>(one.fresh.size());
  }
  return words;
}

void launch(LoadedSequence& loaded, size_t calls, const std::vector<uint64_t>& words, Stream& stream) {
  stream.launch_window(loaded, words.data(), words.size());
  counters().windows.count(calls, loaded.fused_calls, loaded.unwritten_bytes);
}

}  // namespace

/// Launches the window's Program, if it has one by now: with a block for the temporaries that need memory, else with these where eager put
/// them. See Note [Memory that changes hands].
bool EagerWindow::launch_program(const Calls& calls) {
  std::vector<std::pair<const Block*, uint64_t>> blocks;
  for (const auto& one : calls.fresh) {
    if (one.block != nullptr) blocks.emplace_back(one.block, one.made_by);
  }
  std::vector<bool> answers, alive;
  NeuronAllocator::get().cache(stream_.device).still_made_by(blocks, answers);
  size_t asked = 0;
  for (const auto& one : calls.fresh) alive.push_back(one.block == nullptr || answers[asked++]);

  const Topology topology(calls, alive);
  const auto program = find_program(topology, calls, stream_.device);
  if (!program) return false;
  const LoadedSequence& loaded = *program->loaded;
  auto words = words_of(calls, topology);
  const auto kernels = with_kernels(*program, topology, words, stream_.device);
  const size_t bytes = kernels ? kernels->temporary_bytes : loaded.temporary_bytes;
  c10::DataPtr temporaries;
  if (bytes > 0) temporaries = allocate_temporaries(bytes, topology, stream_, /*may_raise_peak=*/kernels != nullptr);
  if (bytes == 0 || temporaries) {
    words.push_back(reinterpret_cast<uint64_t>(temporaries.get()));
    if (kernels) {
      kernels->launch(stream_, std::move(words));
      counters().windows.count(calls.entries.size(), kernels->fused_calls, kernels->unwritten_bytes);
    } else {
      launch(*program->loaded, calls.entries.size(), words, stream_);
    }
    return true;
  }
  if (kernels) return false;
  topology.for_each_fresh(loaded.placed, [&](size_t fresh) { alive[fresh] = true; });
  const Topology in_place(calls, std::move(alive));
  const auto other = find_program(in_place, calls, stream_.device);
  if (!other || other->loaded->temporary_bytes > 0) return false;
  words = words_of(calls, in_place);
  words.push_back(0);
  launch(*other->loaded, calls.entries.size(), words, stream_);
  return true;
}

}  // namespace neuron

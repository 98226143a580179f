#include "csrc/aten/front_end.h"

#include <ATen/Parallel.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "csrc/aten/allocator.h"
#include "csrc/aten/call_reader.h"
#include "csrc/aten/device_tensor.h"
#include "csrc/aten/fallback.h"
#include "csrc/aten/graph.h"
#include "csrc/aten/guard.h"
#include "csrc/aten/recorder.h"
#include "csrc/aten/window.h"
#include "csrc/program/cache.h"
#include "csrc/program/eager_group.h"
#include "csrc/program/explain.h"
#include "csrc/program/metadata.h"
#include "csrc/program/program_target.h"
#include "csrc/runtime/executable.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace neuron {

/// Everything about one overload that outlives a call. Leaked: records and other threads may name it until the very end.
class OpState {
 public:
  explicit OpState(const c10::OperatorHandle& op) : op_(op) {}

  void call(torch::jit::Stack* stack);

  const c10::OperatorHandle& op() const { return op_; }
  OpCounters counters;

 private:
  void prepare();
  void hit(CacheEntry& entry, CallReader& reader, torch::jit::Stack* stack);
  void launch(CacheEntry& entry, const CallReader& reader, c10::ArrayRef<uint64_t> words, c10::ArrayRef<c10::Storage> fresh,
              Stream& stream);
  void miss(CallReader& reader, uint64_t hash, torch::jit::Stack* stack);
  void note_miss(const CallReader& reader);
  void record_inline(CallReader& reader, uint64_t hash, Stream& stream, const torch::jit::Stack& results);
  c10::intrusive_ptr<CacheEntry> learn(CallReader& reader, uint64_t hash, c10::ArrayRef<at::Tensor> tensors, Stream& stream,
                                       torch::jit::Stack& results);
  c10::intrusive_ptr<CacheEntry> keep(CallReader& reader, uint64_t hash, Program program);
  void repeat(CacheEntry& entry, CallReader& reader, Stream& stream, const torch::jit::Stack& results);
  void miss_inferred(CallReader& reader, uint64_t hash, torch::jit::Stack* stack);
  c10::intrusive_ptr<CacheEntry> load_inferred(CallReader& reader, uint64_t hash, std::string* why);

  const c10::OperatorHandle op_;
  std::once_flag prepared_;
  size_t arity_ = 0;
  Metadata metadata_ = Metadata::fixed;
  bool draws_ = false;  ///< its last two arguments are the seed and offset of random words
  OpSpec spec_;
  Cache cache_;
  std::mutex refused_mutex_;
  struct Refusal {
    std::vector<uint64_t> key;
    std::string why;
  };
  static constexpr size_t kMostRefusals = 1024;    // then they are found anew
  std::unordered_map<uint64_t, Refusal> refused_;  ///< by hash: calls that the target cannot run, and why
};

namespace {

std::mutex states_mutex;
std::vector<OpState*>& states() {
  static auto* all = new std::vector<OpState*>;
  return *all;
}

/// The dispatcher's side of an OpState.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(OpState* state) : state_(state) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { state_->call(stack); }

 private:
  OpState* state_;
};

/// The same for an overload that needs_contiguous_out(): it writes fresh tensors, which are copied to those that are not contiguous.
class ContiguousOutKernel final : public c10::OperatorKernel {
 public:
  explicit ContiguousOutKernel(OpState* state) : state_(state) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema().arguments();
    const size_t first = stack->size() - schema.size();
    std::vector<at::Tensor> outs;
    bool contiguous = true;
    for (size_t i = 0; i < schema.size(); ++i) {
      if (!schema[i].is_out()) continue;
      outs.push_back((*stack)[first + i].toTensor());
      contiguous = contiguous && outs.back().is_contiguous();
    }
    if (contiguous) return state_->call(stack);
    for (size_t i = 0; i < schema.size(); ++i)
      if (schema[i].is_out()) {
        const at::Tensor out = (*stack)[first + i].toTensor();
        (*stack)[first + i] = at::empty(out.sizes(), out.options());
      }
    state_->call(stack);
    const size_t results = stack->size() - outs.size();
    for (size_t i = 0; i < outs.size(); ++i) {
      const at::Tensor fresh = (*stack)[results + i].toTensor();
      if (outs[i].sizes() != fresh.sizes()) outs[i].resize_(fresh.sizes());  // the call has warned of it
      (*stack)[results + i] = outs[i].copy_(fresh);
    }
  }

 private:
  OpState* state_;
};

/// One launch that remembers the Python line it came from, for the message of an error that surfaces later; deletes itself.
class SitedLaunch final : public Executable {
 public:
  SitedLaunch(Executable& executable, std::string site) : executable_(executable), site_(std::move(site)) { serial = executable.serial; }

  void run(const uint64_t* words) override {
    std::unique_ptr<SitedLaunch> self(this);
    try {
      executable_.run(words);
    } catch (c10::Error& error) {
      error.add_context(c10::str("It was called at ", site_));
      throw;
    }
  }
  const char* name() const override { return executable_.name(); }

 private:
  Executable& executable_;
  const std::string site_;
};

OpState* new_state(const c10::OperatorHandle& op) {
  auto* state = new OpState(op);
  std::lock_guard lock(states_mutex);
  states().push_back(state);
  return state;
}

/// Tensors like the call's, sharing memory as they do, on zero-filled memory: for learning what a call returns without running it on the
/// user's data.
std::vector<at::Tensor> scratch_like(const CallReader& reader) {
  std::vector<at::Tensor> scratch;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages;
  for (const auto& tensor : reader.tensors()) {
    if (!tensor.device().is_privateuseone()) {
      scratch.push_back(tensor);
      continue;
    }
    const auto* original = tensor.storage().unsafeGetStorageImpl();
    auto found = std::find_if(storages.begin(), storages.end(), [&](const auto& s) { return s.first == original; });
    if (found == storages.end()) {
      auto& allocator = NeuronAllocator::get();
      auto data = allocator.allocate(original->nbytes());
      if (data.get() != nullptr) target().memory(tensor.device().index()).clear(data.get(), original->nbytes());
      storages.emplace_back(original, c10::Storage(c10::Storage::use_byte_size_t(), original->nbytes(), std::move(data), &allocator, true));
      found = storages.end() - 1;
    }
    scratch.push_back(make_device_tensor(found->second, TensorMeta::of(tensor, tensor.storage_offset()), tensor.storage_offset()));
  }
  return scratch;
}

}  // namespace

Executable& with_call_site(Executable& executable, const Stream& stream) {
  // Not in a capture: a graph launches the executable again and again.
  if (C10_LIKELY(!settings().stack_trace) || !python_call_site || stream.capture() != nullptr) return executable;
  return *new SitedLaunch(executable, python_call_site());
}

namespace {

/// Whether a launch may wait in the stream's window (window.h): nobody watches it singly, and results need not be reproducible from one
/// kernel version to the next.
bool joins_window(const CacheEntry& entry, const CallReader& reader, const Stream& stream) {
  const auto& s = settings();
  return !s.launch_blocking && !s.stack_trace && !entry.settles && stream.capture() == nullptr && Recorder::current() == nullptr &&
         !is_deterministic(reader.key());
}

}  // namespace

c10::KernelFunction boxed_kernel(const c10::OperatorHandle& op) {
  if (needs_contiguous_out(op)) return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ContiguousOutKernel>(new_state(op)));
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(new_state(op)));
}

void OpState::prepare() {
  const auto& schema = op_.schema();
  arity_ = schema.arguments().size();
  for (const auto& argument : schema.arguments()) {
    auto type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const bool is_float = type->kind() == c10::TypeKind::FloatType;  // lists of floats (scale factors) may decide a shape
    if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
    ArgSpec spec;
    spec.number = is_float || type->kind() == c10::TypeKind::NumberType;
    spec.device = type->kind() == c10::TypeKind::DeviceObjType;
    spec.written = (argument.alias_info() && argument.alias_info()->isWrite()) || writes_unannounced(op_, argument);
    spec.out = argument.is_out();
    spec.accepts_cpu = accepts_cpu_tensor(op_, static_cast<int>(spec_.arguments.size()));
    spec_.arguments.push_back(spec);
  }
  spec_.scalars_in_key = scalars_shape_it(op_);
  spec_.offsets_in_key = reads_offset(op_);
  spec_.shaped_by_masks = shaped_by_masks(op_);
  metadata_ = metadata_of(op_);
  const auto& arguments = schema.arguments();
  draws_ = arity_ > 1 && arguments[arity_ - 2].name() == "seed" && arguments[arity_ - 1].name() == "offset" &&
           schema.name().compare(0, 8, "neuron::") == 0;
}

void OpState::call(torch::jit::Stack* stack) {
  std::call_once(prepared_, [this] { prepare(); });
  auto arguments = torch::jit::last(*stack, arity_);
  CallReader reader(op_, spec_, arguments);
  if (C10_UNLIKELY(!reader.read())) {
    // An index tensor on the CPU, as CUDA allows: move it, then start again.
    auto& value = (*stack)[stack->size() - arity_ + reader.cpu_argument()];
    c10::Device device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(reader.device()));
    if (value.isTensor()) {
      value = value.toTensor().to(device);
    } else {
      auto list = value.toList().copy();
      for (size_t i = 0; i < list.size(); ++i) {
        c10::IValue element = list.get(i);
        if (element.isTensor() && element.toTensor().defined()) list.set(i, element.toTensor().to(device));
      }
      value = list;
    }
    return call(stack);
  }
  if (C10_LIKELY(metadata_ == Metadata::fixed && reader.cacheable())) {
    const uint64_t hash = hash_key(reader.key());
    if (auto entry = cache_.find(hash, reader.key())) {
      counters.hits.fetch_add(1, std::memory_order_relaxed);
      return hit(*entry, reader, stack);
    }
    counters.misses.fetch_add(1, std::memory_order_relaxed);
    return miss(reader, hash, stack);
  }
  counters.inlined.fetch_add(1, std::memory_order_relaxed);
  miss(reader, 0, stack);
}

/// One launch, by itself.
void OpState::launch(CacheEntry& entry, const CallReader& reader, c10::ArrayRef<uint64_t> words, c10::ArrayRef<c10::Storage> fresh,
                     Stream& stream) {
  stream.launch(with_call_site(*entry.executable, stream), words.data(), words.size());
  if (Graph* graph = Graph::of(stream)) [[unlikely]] {
    // Seed and offset are the last payloads before the fresh storages.
    const int seed = draws_ ? entry.program->input_words - 4 : -1;
    graph->note_launch(c10::intrusive_ptr<CacheEntry>::reclaim_copy(&entry), seed, seed + 2);
  }
  if (Recorder* recorder = Recorder::current()) [[unlikely]]
    recorder->launched(entry, reader, words, fresh, stream, draws_);
  neuron::counters().launches.fetch_add(1, std::memory_order_relaxed);
}

/// The hot path: allocate, launch, describe.
void OpState::hit(CacheEntry& entry, CallReader& reader, torch::jit::Stack* stack) {
  const Program& program = *entry.program;
  const int device = reader.device();
  Stream* stream = current_stream(device);
  auto& allocator = NeuronAllocator::get();
  auto& words = reader.words();

  c10::SmallVector<c10::Storage, 4> fresh;
  c10::SmallVector<Block*, 4> blocks;
  for (const auto& storage : program.fresh) {
    blocks.push_back(storage.bytes == 0 ? nullptr : allocator.allocate_block(device, stream, storage.bytes));
    c10::DataPtr data = storage.bytes == 0
                            ? c10::DataPtr(nullptr, c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)))
                            : allocator.make_data_ptr(blocks.back());
    words.push_back(reinterpret_cast<uint64_t>(data.get()));
    fresh.emplace_back(
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.bytes, std::move(data), &allocator, true));
  }
  if (!entry.executable->serial) set_compute_threads(at::get_num_threads());
  if (adaptive_eager().load(std::memory_order_relaxed) && joins_window(entry, reader, *stream)) [[unlikely]]
    EagerWindow::of(*stream).append(entry, reader, words, blocks);
  else
    launch(entry, reader, words, fresh, *stream);
  auto make = [&](const ResultMeta& result) -> c10::IValue {
    switch (result.kind) {
      case ResultMeta::Kind::argument:
        return reader.tensor(result.source);
      case ResultMeta::Kind::view: {
        const auto& source = reader.tensor(result.source);
        return make_device_tensor(source.storage(), result.meta, source.storage_offset() + result.meta.offset);
      }
      case ResultMeta::Kind::fresh:
        return make_device_tensor(fresh[result.source], result.meta, result.meta.offset);
      case ResultMeta::Kind::undefined:
        return at::Tensor();
      case ResultMeta::Kind::constant:
        return result.value;
    }
    return {};
  };
  c10::SmallVector<c10::IValue, 4> results;
  for (const auto& returned : program.returns) {
    if (!returned.is_list) {
      results.push_back(make(returned.results[0]));
      continue;
    }
    c10::List<at::Tensor> list;
    list.reserve(returned.results.size());
    for (const auto& result : returned.results) list.push_back(make(result).toTensor());
    results.emplace_back(std::move(list));
  }
  torch::jit::drop(*stack, arity_);
  for (auto& result : results) stack->push_back(std::move(result));
  if (C10_UNLIKELY(settings().launch_blocking))
    stream->synchronize();
  else if (C10_UNLIKELY(entry.settles) && !stream->capture())
    stream->drain();
}

/// Runs inline after the stream's earlier work, and learns the metadata. `hash` 0: not to be cached.
void OpState::miss(CallReader& reader, uint64_t hash, torch::jit::Stack* stack) {
  if (program_target().infers()) return miss_inferred(reader, hash, stack);
  Stream* stream = current_stream(reader.device());
  if (hash != 0) {
    Program program = reader.program();
    if (infer_written(program)) {
      if (recording().on()) note_miss(reader);
      auto entry = keep(reader, hash, std::move(program));
      return hit(*entry, reader, stack);
    }
  }
  if (stream->capture() != nullptr && hash != 0) [[unlikely]] {
    torch::jit::Stack nothing;
    learn(reader, hash, scratch_like(reader), *stream, nothing);
    auto entry = cache_.find(hash, reader.key());
    TORCH_CHECK(entry, op_.operator_name(), " resizes its out= argument, which a graph cannot capture: give it one of the right size.");
    return hit(*entry, reader, stack);
  }
  if (metadata_ != Metadata::fixed || !reader.cacheable()) {
    note_sync(metadata_ == Metadata::host_value ? "value read by the host"
                                                : "the host looks at the data: for a result's size, or whether the call succeeded");
  } else if (recording().on()) {
    note_miss(reader);
  }
  stream->synchronize();
  torch::jit::Stack results;
  auto entry = learn(reader, hash, reader.tensors(), *stream, results);
  if (entry && entry->executable->repeats_first_run) repeat(*entry, reader, *stream, results);
  if (Recorder::current() != nullptr) [[unlikely]]
    record_inline(reader, hash, *stream, results);
  torch::jit::drop(*stack, arity_);
  for (auto& result : results) stack->push_back(std::move(result));
}

/// The entry, or null when the Program must not be kept.
c10::intrusive_ptr<CacheEntry> OpState::learn(CallReader& reader, uint64_t hash, c10::ArrayRef<at::Tensor> tensors, Stream& stream,
                                              torch::jit::Stack& results) {
  Program program = reader.program();
  const bool stays = program_target().trace(program, tensors, stream, results);
  return stays && hash != 0 ? keep(reader, hash, std::move(program)) : c10::intrusive_ptr<CacheEntry>();
}

c10::intrusive_ptr<CacheEntry> OpState::keep(CallReader& reader, uint64_t hash, Program program) {
  auto entry = c10::make_intrusive<CacheEntry>();
  entry->key.assign(reader.key().begin(), reader.key().end());
  entry->marks.assign(reader.marks().begin(), reader.marks().end());
  entry->settles = fix_default_dtype(program);
  entry->signature = hash ^ std::hash<std::string>()(toString(op_.operator_name()));
  entry->fuses = op_.hasTag(at::Tag::pointwise);
  entry->program = std::make_shared<const Program>(std::move(program));
  entry->bytes = entry->program->bytes();
  entry->executable = program_target().load(entry->program, reader.device());
  return cache_.insert(hash, std::move(entry));
}

/// The storages of a traced call's results, in the order of program.fresh.
static std::vector<c10::Storage> fresh_storages(const Program& program, const torch::jit::Stack& results) {
  std::vector<c10::Storage> fresh(program.fresh.size());
  auto take = [&](const ResultMeta& meta, const c10::IValue& value) {
    if (meta.kind == ResultMeta::Kind::fresh) fresh[meta.source] = value.toTensor().storage();
  };
  for (size_t r = 0; r < results.size(); ++r) {
    const auto& returned = program.returns[r];
    if (!returned.is_list) {
      take(returned.results[0], results[r]);
      continue;
    }
    auto elements = results[r].toListRef();
    for (size_t i = 0; i < returned.results.size(); ++i) take(returned.results[i], elements[i]);
  }
  return fresh;
}

/// Runs what a traced call has learnt on the results of its trace, see Executable::repeats_first_run.
void OpState::repeat(CacheEntry& entry, CallReader& reader, Stream& stream, const torch::jit::Stack& results) {
  std::vector<uint64_t> words(reader.words().begin(), reader.words().end());
  for (const auto& storage : fresh_storages(*entry.program, results)) words.push_back(reinterpret_cast<uint64_t>(storage.data()));
  stream.launch(*entry.executable, words.data(), words.size());
  if (settings().launch_blocking) stream.synchronize();
}

/// Tells the Recorder of a call that ran inline: next time it would be a launch.
void OpState::record_inline(CallReader& reader, uint64_t hash, Stream& stream, const torch::jit::Stack& results) {
  auto entry = hash == 0 ? nullptr : cache_.find(hash, reader.key());
  if (!entry) return Recorder::current()->stop(c10::str(op_.operator_name(), ": its results do not follow from its arguments' metadata"));
  Recorder::current()->launched(*entry, reader, reader.words(), fresh_storages(*entry->program, results), stream, draws_);
}

/// On a target that learns without running: what can be loaded is launched, the rest runs on the host as the policy says.
void OpState::miss_inferred(CallReader& reader, uint64_t hash, torch::jit::Stack* stack) {
  std::string why = "its results depend on data";
  if (hash != 0) {
    if (auto entry = load_inferred(reader, hash, &why)) return hit(*entry, reader, stack);
  }
  allow_fallback(op_, why);
  Stream* stream = current_stream(reader.device());
  note_sync("a call ran on the host");
  program_target().run_on_host(op_, stack, *stream);
}

/// The entry of a call that the target can run; else null, and the reason, which is found once.
c10::intrusive_ptr<CacheEntry> OpState::load_inferred(CallReader& reader, uint64_t hash, std::string* why) {
  {
    std::lock_guard lock(refused_mutex_);
    auto known = refused_.find(hash);
    if (known != refused_.end() && reader.key() == c10::ArrayRef<uint64_t>(known->second.key)) return *why = known->second.why, nullptr;
  }
  if (recording().on()) note_miss(reader);
  Program program = reader.program();
  try {
    if (program_target().infer(program, reader.tensors(), why)) return keep(reader, hash, std::move(program));
  } catch (const c10::NotImplementedError& error) {
    *why = error.what_without_backtrace();
  }
  std::lock_guard lock(refused_mutex_);
  if (refused_.size() >= kMostRefusals) refused_.clear();
  refused_.insert_or_assign(hash, Refusal{{reader.key().begin(), reader.key().end()}, *why});
  return nullptr;
}

void OpState::note_miss(const CallReader& reader) {
  auto before = cache_.latest();
  recording().miss(toString(op_.operator_name()),
                   before ? describe_difference(op_, before->key, before->marks, reader.key(), reader.marks()) : "first call");
}

std::vector<OpCounts> op_counts() {
  std::lock_guard lock(states_mutex);
  std::vector<OpCounts> counts;
  for (auto* state : states()) {
    const auto& c = state->counters;
    OpCounts one{"", c.hits.load(), c.misses.load(), c.inlined.load()};
    if (one.hits + one.misses + one.inlined == 0) continue;
    one.name = toString(state->op().operator_name());
    counts.push_back(std::move(one));
  }
  return counts;
}

void clear_op_counts() {
  std::lock_guard lock(states_mutex);
  for (auto* state : states()) {
    state->counters.hits = 0;
    state->counters.misses = 0;
    state->counters.inlined = 0;
  }
}

LaunchedOp::LaunchedOp(const char* name, const char* overload)
    : state_(new_state(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload))) {}

void LaunchedOp::operator()(torch::jit::Stack* stack) const { state_->call(stack); }

}  // namespace neuron

#include "csrc/runtime/emulated/executable.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "csrc/aten/allocator.h"
#include "csrc/aten/device_tensor.h"
#include "csrc/program/eager_group.h"
#include "csrc/program/metadata.h"
#include "csrc/runtime/emulated/arena.h"
#include "csrc/runtime/emulated/fused.h"
#include "csrc/runtime/emulated/layouts.h"
#include "csrc/runtime/emulated/sequence.h"
#include "csrc/runtime/emulated/stream.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/settings.h"

namespace neuron {
namespace {

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
std::atomic<uint64_t> mismatches{0};

/// Sets the number of OpenMP threads for one kernel. torch's own OpenMP runtime is found by name: linking another one would
/// give the process two. at::set_num_threads() is not used because it changes process-wide settings.
class ThreadScope {
 public:
  explicit ThreadScope(bool serial) {
    static thread_local bool initialised = (at::internal::lazy_init_num_threads(), true);
    (void)initialised;
    if (!omp().get) return;
    int wanted = serial ? 1 : compute_threads();
    before_ = omp().get();
    if (wanted == before_)
      before_ = 0;
    else
      omp().set(wanted);
  }
  ~ThreadScope() {
    if (before_ > 0) omp().set(before_);
  }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  struct Omp {
    int (*get)();
    void (*set)(int);
  };
  static const Omp& omp() {
    static const Omp found = [] {
      auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
      auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
      return get && set ? Omp{get, set} : Omp{};
    }();
    return found;
  }
  int before_ = 0;
};

}  // namespace

c10::Storage cpu_storage(void* data, size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(), true);
}

at::Tensor cpu_view(c10::Storage storage, const TensorMeta& meta) { return make_stand_in(c10::DispatchKey::CPU, std::move(storage), meta); }

c10::Storage cpu_view(const c10::Storage& device) {
  void* data = device.mutable_data();
  return cpu_storage(data ? host_address(data) : nullptr, device.nbytes());
}

c10::DataPtr adopt_memory(c10::StorageImpl& cpu, Stream& stream, const TraceArena* arena) {
  const size_t bytes = cpu.data() == nullptr ? 0 : cpu.nbytes();  // a ZeroTensor has a size and no memory
  if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(stream.device))};
  auto& allocator = NeuronAllocator::get();
  // The CPU storage keeps its pointer, which no longer frees the block, for other results that share it and are still to be adopted.
  if (arena != nullptr && arena->index_of(cpu.data()) >= 0) {
    if (Block* traced = TraceArena::take(cpu.mutable_data())) return allocator.make_data_ptr(traced);
  }
  c10::DataPtr data = allocator.make_data_ptr(allocator.allocate_block(stream.device, &stream, bytes));
  std::memcpy(host_address(data.get()), cpu.data(), bytes);
  return data;
}

namespace {

c10::IValue scalar_value(Payload::Type type, const uint64_t* words) {
  double real, imaginary;
  std::memcpy(&real, words, sizeof real);
  switch (type) {
    case Payload::Type::integer:
      return static_cast<int64_t>(words[0]);
    case Payload::Type::boolean:
      return words[0] != 0;
    case Payload::Type::real:
      return real;
    case Payload::Type::complex:
      std::memcpy(&imaginary, words + 1, sizeof imaginary);
      return c10::complex<double>(real, imaginary);
  }
  return {};
}

}  // namespace

// ---- Frame ----

Frame::Frame(const OpCall& call) : arguments_(own_lists(call)), scalar_memory_(call.tensors.size()), payloads_(call.payloads) {
  std::vector<c10::Storage> storages(call.tensors.size());
  std::vector<size_t> bytes(call.tensors.size(), 0);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& slot = call.tensors[i];
    size_t leader = slot.host_scalar ? i : slot.leader;
    bytes[leader] = std::max(bytes[leader], slot.meta.span_bytes());
  }
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& slot = call.tensors[i];
    if (slot.host_scalar) {
      storages[i] = cpu_storage(scalar_memory_[i].data(), bytes[i]);
      host_scalars_.push_back({slot.word, c10::elementSize(slot.meta.dtype), scalar_memory_[i].data()});
    } else if (slot.leader == static_cast<int>(i)) {
      storages[i] = cpu_storage(nullptr, bytes[i]);
      pointers_.push_back(
          {storages[i].unsafeGetStorageImpl(), slot.word, slot.meta.offset * static_cast<int64_t>(c10::elementSize(slot.meta.dtype))});
    }
    const auto& storage = slot.host_scalar ? storages[i] : storages[slot.leader];
    views_.push_back(slot.same_as >= 0 ? views_[slot.same_as] : cpu_view(storage, slot.meta));
    put(arguments_, slot.place, views_.back());
    if (slot.place.element >= 0 && arguments_[slot.place.arg].toList().elementType()->kind() == c10::TypeKind::OptionalType)
      by_reference_.emplace_back(slot.place, i);
  }
}

const std::vector<c10::IValue>& Frame::bind(const uint64_t* words) {
  for (const auto& p : pointers_) {
    auto* first = reinterpret_cast<char*>(words[p.word]);
    void* data = first == nullptr ? nullptr : host_address(first - p.offset_bytes);
    p.storage->set_data_ptr_noswap(c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)));
  }
  for (const auto& s : host_scalars_) std::memcpy(s.data, &words[s.word], s.bytes);
  for (const auto& p : payloads_) put(arguments_, p.place, scalar_value(p.type, &words[p.word]));
  for (const auto& [place, slot] : by_reference_) put(arguments_, place, views_[slot]);
  return arguments_;
}

// ---- EmulatedExecutable ----

EmulatedExecutable::EmulatedExecutable(std::shared_ptr<const Program> program, int device)
    : owner_(std::move(program)),
      program_(*owner_),
      name_(toString(program_.calls.at(0).op.operator_name())),
      device_(device),
      frame_(program_.calls[0]) {
  serial = is_serial(program_);
}

void EmulatedExecutable::run(const uint64_t* words) {
  const auto& arguments = frame_.bind(words);
  const auto* fresh_words = words + program_.input_words;
  stack_.assign(arguments.begin(), arguments.end());
  // Whatever happens, no result may stay behind in the stack: it would hold memory of the host's.
  struct Clear {
    torch::jit::Stack& stack;
    ~Clear() { stack.clear(); }
  } clear{stack_};
  c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, keys_above_kernels());
  {
    ThreadScope threads(serial);
    ReplayArena arena(program_.fresh, fresh_words, device_);
    try {
      program_.calls[0].op.redispatchBoxed(kCpu, &stack_);
    } catch (c10::Error& error) {
      if (settings().launch_blocking) throw;
      error.add_context(
          c10::str("This error was raised by ", name_, " on neuron:", device_,
                   ", which ran asynchronously: the call that caused it is earlier in the program. NEURON_LAUNCH_BLOCKING=1 makes "
                   "each call raise its own errors."));
      throw;
    }
  }
  if (settings().check_meta) check_meta();
  if (!program_.fresh.empty()) deliver(fresh_words);
}

/// Copies the results that the kernel did not write where the host expects them.
void EmulatedExecutable::deliver(const uint64_t* fresh_words) {
  struct Move {
    void* to;
    const void* from;
    size_t bytes;
  };
  c10::SmallVector<Move, 4> moves;
  auto add = [&](const ResultMeta& meta, const c10::IValue& value) {
    if (meta.kind != ResultMeta::Kind::fresh) return;
    const auto& fresh = program_.fresh[meta.source];
    if (fresh.bytes == 0) return;
    const auto& storage = value.toTensor().storage();
    auto* wanted = host_address(reinterpret_cast<void*>(fresh_words[meta.source]));
    if (storage.data() != wanted) moves.push_back({wanted, storage.data(), std::min(fresh.bytes, storage.nbytes())});
  };
  for (size_t r = 0; r < program_.returns.size(); ++r) {
    const auto& returned = program_.returns[r];
    if (!returned.is_list) {
      add(returned.results[0], stack_[r]);
      continue;
    }
    auto elements = stack_[r].toListRef();
    for (size_t i = 0; i < returned.results.size(); ++i) add(returned.results[i], elements[i]);
  }
  // A kernel whose temporaries depend on a Scalar's value allocates in another order than the traced one, so that a result may lie in the
  // block of another: it is set aside before that one is written.
  std::vector<std::vector<char>> aside;
  for (auto& move : moves) {
    auto overwrites = [&](const Move& other) { return other.to == move.from; };
    if (moves.size() == 1 || std::none_of(moves.begin(), moves.end(), overwrites)) continue;
    const auto* data = static_cast<const char*>(move.from);
    aside.emplace_back(data, data + move.bytes);
    move.from = aside.back().data();
  }
  for (const auto& move : moves) std::memcpy(move.to, move.from, move.bytes);
}

void EmulatedExecutable::check_meta() const {
  auto check = [&](const ResultMeta& meta, const c10::IValue& value) {
    if (meta.kind == ResultMeta::Kind::constant || !value.isTensor()) return;
    const auto& tensor = value.toTensor();
    bool same = meta.kind == ResultMeta::Kind::undefined  ? !tensor.defined()
                : meta.kind == ResultMeta::Kind::argument ? tensor.is_same(frame_.view(meta.source))
                                                          : meta.meta.matches(tensor);
    if (meta.kind == ResultMeta::Kind::fresh && same) same = tensor.storage_offset() == meta.meta.offset;
    if (same) return;
    mismatches.fetch_add(1);
    TORCH_CHECK(false, "[TORCH_NEURONX_CHECK_META] ", name_, " returned a result of shape ", tensor.sizes(), " strides ", tensor.strides(),
                " offset ", tensor.storage_offset(), " dtype ", tensor.scalar_type(), ", but the cached metadata says shape ",
                at::IntArrayRef(meta.meta.sizes), " strides ", at::IntArrayRef(meta.meta.strides), " offset ", meta.meta.offset, " dtype ",
                meta.meta.dtype, ". The overload decides its result from data (or from offsets): it belongs in csrc/program/metadata.cpp.");
  };
  for (size_t r = 0; r < program_.returns.size(); ++r) {
    const auto& returned = program_.returns[r];
    if (!returned.is_list) {
      check(returned.results[0], stack_.at(r));
      continue;
    }
    auto elements = stack_.at(r).toListRef();
    for (size_t i = 0; i < returned.results.size(); ++i) check(returned.results[i], elements[i]);
  }
}

// ---- Tracing ----

namespace {

/// One inline run of a call on exact views: whole storages, true offsets.
class Tracer {
 public:
  Tracer(Program& program, c10::ArrayRef<at::Tensor> tensors, Stream& stream)
      : program_(program), call_(program.calls[0]), tensors_(tensors), stream_(stream) {}

  bool run(torch::jit::Stack& results) {
    auto arguments = own_lists(call_);
    make_views(arguments);
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    InlineRun alone(stream_);
    {
      c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, keys_above_kernels());
      ThreadScope threads(is_serial(program_));
      TraceArena arena(stream_);
      arena_ = &arena;
      call_.op.redispatchBoxed(kCpu, &stack);
      adopt_writes();
      for (const auto& value : stack) results.push_back(adopt(value));
    }
    return keep_;
  }

 private:
  void make_views(std::vector<c10::IValue>& arguments);
  void adopt_writes();
  c10::IValue adopt(const c10::IValue& value);
  ResultMeta adopt_tensor(const at::Tensor& tensor, at::Tensor& adopted);
  int fresh_storage(c10::StorageImpl* cpu);
  bool follows_an_offset() const;

  Program& program_;
  const OpCall& call_;
  c10::ArrayRef<at::Tensor> tensors_;
  Stream& stream_;
  TraceArena* arena_ = nullptr;
  bool keep_ = true;
  std::vector<at::Tensor> views_;
  std::vector<const void*> data_before_;
  std::vector<c10::StorageImpl*> fresh_cpu_;  // CPU storages of results, and the device storages that took their memory
  std::vector<c10::Storage> fresh_device_;
};

void Tracer::make_views(std::vector<c10::IValue>& arguments) {
  std::vector<c10::Storage> storages(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto& slot = call_.tensors[i];
    const auto& tensor = tensors_[i];
    if (slot.host_scalar) {
      views_.push_back(tensor);
    } else if (slot.same_as >= 0) {
      views_.push_back(views_[slot.same_as]);
    } else {
      if (slot.leader == static_cast<int>(i)) {
        storages[i] = cpu_view(tensor.storage());
      }
      views_.push_back(cpu_view(storages[slot.leader], TensorMeta::of(tensor, tensor.storage_offset())));
    }
    data_before_.push_back(views_.back().storage().data());
    put(arguments, slot.place, views_.back());
  }
}

/// A kernel may have resized an `out=` argument: the device tensor follows, and the Program is not kept.
void Tracer::adopt_writes() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto& view = views_[i];
    const auto& tensor = tensors_[i];
    if (call_.tensors[i].host_scalar || call_.tensors[i].same_as >= 0) continue;
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto* cpu = view.storage().unsafeGetStorageImpl();
    if (cpu->data() != data_before_[i] && call_.tensors[i].leader == static_cast<int>(i)) {
      keep_ = false;
      auto& allocator = NeuronAllocator::get();
      size_t bytes = cpu->nbytes();
      Block* block = TraceArena::take(cpu->mutable_data());
      TORCH_INTERNAL_ASSERT(block != nullptr, call_.op.operator_name(), " resized an argument with memory from elsewhere");
      storage->set_data_ptr(allocator.make_data_ptr(block));
      storage->set_nbytes(bytes);
    }
    // linalg_lu_solve.out and the like leave a conjugate view behind.
    if (view.is_conj() != tensor.is_conj() || view.is_neg() != tensor.is_neg()) {
      keep_ = false;
      tensor._set_conj(view.is_conj());
      tensor._set_neg(view.is_neg());
    }
    if (view.sizes() != tensor.sizes() || view.strides() != tensor.strides() || view.storage_offset() != tensor.storage_offset()) {
      keep_ = false;
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
    }
  }
}

c10::IValue Tracer::adopt(const c10::IValue& value) {
  ReturnMeta returned;
  c10::IValue adopted = value;
  if (value.isTensor()) {
    at::Tensor tensor;
    returned.results.push_back(adopt_tensor(value.toTensor(), tensor));
    adopted = tensor;
  } else if (value.isTensorList()) {
    returned.is_list = true;
    c10::List<at::Tensor> list;
    for (const auto& element : value.toListRef()) {
      at::Tensor tensor;
      returned.results.push_back(adopt_tensor(element.toTensor(), tensor));
      list.push_back(tensor);
    }
    adopted = list;
  } else {
    ResultMeta constant;
    constant.kind = ResultMeta::Kind::constant;
    constant.value = value;
    returned.results.push_back(constant);
  }
  program_.returns.push_back(std::move(returned));
  return adopted;
}

/// Gives the memory of a result's CPU storage (null: it has none) to a device storage; returns its index among program_.fresh.
int Tracer::fresh_storage(c10::StorageImpl* cpu) {
  for (size_t i = 0; i < fresh_cpu_.size(); ++i) {
    if (cpu != nullptr && fresh_cpu_[i] == cpu) return static_cast<int>(i);
  }
  FreshStorage fresh;
  c10::DataPtr data(nullptr, c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(stream_.device)));
  if (cpu != nullptr) {
    fresh = {cpu->nbytes(), arena_->index_of(cpu->data())};
    data = adopt_memory(*cpu, stream_, arena_);
  }
  fresh_cpu_.push_back(cpu);
  fresh_device_.emplace_back(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), fresh.bytes, std::move(data),
                                                                   &NeuronAllocator::get(), true));
  program_.fresh.push_back(fresh);
  return static_cast<int>(fresh_cpu_.size()) - 1;
}

/// Whether the run saw an offset that the Program's description of the argument leaves out.
bool Tracer::follows_an_offset() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!call_.tensors[i].host_scalar && tensors_[i].storage_offset() != call_.tensors[i].meta.offset) return true;
  }
  return false;
}

ResultMeta Tracer::adopt_tensor(const at::Tensor& tensor, at::Tensor& adopted) {
  ResultMeta result;
  if (!tensor.defined()) {
    result.kind = ResultMeta::Kind::undefined;
    return result;
  }
  for (size_t i = 0; i < views_.size(); ++i) {
    if (!tensor.is_same(views_[i])) continue;
    result.kind = ResultMeta::Kind::argument;
    result.source = static_cast<int>(i);
    adopted = tensors_[i];
    return result;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && !tensor.is_quantized(), call_.op.operator_name(),
                              " returns a tensor of layout ", tensor.layout(), (tensor.is_quantized() ? " (quantized)" : ""),
                              ", which device neuron does not hold yet: run it on the CPU, x.cpu()");
  auto* cpu = tensor.storage().unsafeGetStorageImpl();
  if (tensor._is_zerotensor()) {
    result.source = fresh_storage(nullptr);
    result.meta = TensorMeta::of(tensor, 0);
    adopted = make_device_tensor(fresh_device_[result.source], result.meta, 0);
    return result;
  }
  for (size_t i = 0; i < views_.size(); ++i) {
    if (call_.tensors[i].host_scalar || views_[i].storage().unsafeGetStorageImpl() != cpu) continue;
    result.kind = ResultMeta::Kind::view;
    result.source = static_cast<int>(i);
    result.meta = TensorMeta::of(tensor, tensor.storage_offset() - views_[i].storage_offset());
    adopted = make_device_tensor(tensors_[i].storage(), result.meta, tensor.storage_offset());
    return result;
  }
  result.source = fresh_storage(cpu);
  result.meta = TensorMeta::of(tensor, tensor.storage_offset());
  // The offset of an argument is not in the key unless metadata.cpp says so: a result that may have taken it over cannot be foretold.
  if (result.meta.offset != 0 && follows_an_offset()) keep_ = false;
  adopted = make_device_tensor(fresh_device_[result.source], result.meta, result.meta.offset);
  return result;
}

class EmulatedPrograms final : public ProgramTarget {
 public:
  std::unique_ptr<Executable> load(std::shared_ptr<const Program> program, int device) override {
    if (auto groups = groups_of_one(*program); !groups.empty())
      return std::make_unique<FusedExecutable>(std::move(groups), toString(program->calls[0].op.operator_name()), is_serial(*program));
    return std::make_unique<EmulatedExecutable>(std::move(program), device);
  }
  std::unique_ptr<LoadedSequence> load(std::shared_ptr<const Sequence> sequence, int device) override {
    return load_sequence(std::move(sequence), device);
  }
  bool trace(Program& program, c10::ArrayRef<at::Tensor> tensors, Stream& stream, torch::jit::Stack& results) override {
    set_compute_threads(at::get_num_threads());
    return Tracer(program, tensors, stream).run(results);
  }
  void run_any_layout(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) override {
    set_compute_threads(at::get_num_threads());
    run_layout_call(op, stack, stream);
  }
  uint64_t meta_mismatches() const override { return mismatches.load(); }
};

}  // namespace

ProgramTarget& emulated_programs() {
  static auto* target = (install_arena(), new EmulatedPrograms);
  return *target;
}

}  // namespace neuron

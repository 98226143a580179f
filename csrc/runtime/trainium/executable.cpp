#include "csrc/runtime/trainium/executable.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "csrc/aten/allocator.h"
#include "csrc/program/explain.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/trainium/device.h"
#include "csrc/runtime/trainium/host_call.h"
#include "csrc/runtime/trainium/infer.h"
#include "csrc/runtime/trainium/stream.h"

namespace neuron::trainium {
namespace {

std::mutex loaded_mutex;
std::set<TrainiumExecutable*>& loaded() {
  static auto* all = new std::set<TrainiumExecutable*>;
  return *all;
}

std::atomic<bool> closing{false};

/// The runtime must not be closed with models loaded.
void unload_all_models() {
  closing.store(true);
  std::lock_guard lock(loaded_mutex);
  for (auto* executable : loaded()) executable->unload();
  loaded().clear();
}

/// A payload as the NEFF wants it.
void payload_bytes(const LoweredProgram::Operand& operand, const uint64_t* words, uint64_t* to) {
  using As = LoweredProgram::Operand::As;
  to[0] = words[0] + (operand.as == As::integer ? static_cast<uint64_t>(operand.add) : 0);
  if (operand.bytes > sizeof *to) to[1] = words[1];
  if (operand.as == As::float32) {
    double wide;
    std::memcpy(&wide, words, sizeof wide);
    const auto narrow = static_cast<float>(wide);
    std::memcpy(to, &narrow, sizeof narrow);
  } else if (operand.as == As::boolean) {
    to[0] = words[0] != 0;
  }
}

/// The stream whose launches this thread holds back; null when it holds none. What is loaded then may never run.
thread_local TrainiumStream* holding = nullptr;

/// Said once, where a program is met whose NEFF is not there.
void warn_of_the_host() {
  if (settings().fallback == Fallback::allow) return;
  TORCH_WARN_ONCE(
      "<TorchNeuron/Compile> programs run on the host until neuronx-cc has compiled them (TORCH_NEURONX_COMPILE=background). "
      "torch.neuron.explain() counts these launches, torch_neuronx.compiler.wait() waits for the compiler, TORCH_NEURONX_FALLBACK=allow "
      "accepts it silently.");
}

/// Has the caching allocator give back what it keeps of a device's HBM; false when it keeps nothing.
bool give_back_memory(int device) {
  DeviceCache* cache = NeuronAllocator::get().cache_if_open(device);
  if (cache == nullptr) return false;
  if (TrainiumStream::running() != nullptr) {
    cache->release_unused();  // a stream's thread must not wait for its own stream: what that has used stays
    return true;
  }
  if (holding != nullptr) holding->forget_held();
  cache->empty_cache();
  return true;
}

/// nrt_load(). Programs lie in HBM too, which the caching allocator may have taken for tensors that are gone.
NRT_STATUS load_model(const std::string& neff, int device, nrt_model_t** model) {
  const int vnc = opened_target().vnc(device);
  const auto attempt = [&] { return nrt().nrt_load(neff.data(), neff.size(), vnc, 1, model); };
  const NRT_STATUS status = attempt();
  return status == NRT_RESOURCE && give_back_memory(device) ? attempt() : status;
}

ProgramCompiler& compiler() {
  TORCH_CHECK(program_compiler != nullptr, "Programs for a NeuronCore are compiled by torch_neuronx.compiler, which needs Python.");
  return *program_compiler;
}

}  // namespace

TrainiumExecutable::TrainiumExecutable(std::shared_ptr<const LoweredProgram> lowered, int device, MakeHostProgram on_host)
    : lowered_(std::move(lowered)),
      device_(device),
      memory_(opened_target().memory(device)),
      queues_(opened_target().queues(device)),
      make_host_program_(std::move(on_host)) {
  static const bool registered = (before_close(unload_all_models), true);
  (void)registered;
}

std::shared_ptr<HostProgram> TrainiumExecutable::load() {
  if (model_.load()) return nullptr;
  std::unique_lock one_at_a_time(mutex_);
  if (model_.load()) return nullptr;
  TORCH_CHECK(!closing.load(), name(), " was launched while the process exits.");
  if (settings().compile == Compile::background && !pending_ && (on_host_ = make_host_program_()))
    pending_ = compiler().compile_in_background(*lowered_);
  std::string neff;
  if (const auto pending = pending_) {
    if (!pending->done()) return on_host_;
    one_at_a_time.unlock();  // what the compiler has thrown is raised with Python's lock, whose holder may want this one
    neff = pending->neff();
    one_at_a_time.lock();
    if (model_.load()) return nullptr;
  } else {
    neff = compiler().compile(*lowered_);
  }
  nrt_model_t* model = nullptr;
  const NRT_STATUS status = load_model(neff, device_, &model);
  if (status != NRT_SUCCESS) raise_status(status, c10::str("loading the program of ", name(), " on neuron:", device_));
  std::lock_guard lock(loaded_mutex);
  loaded().insert(this);
  model_.store(model);
  pending_.reset();
  on_host_.reset();
  return nullptr;
}

TrainiumExecutable::~TrainiumExecutable() {
  {
    std::lock_guard lock(loaded_mutex);
    loaded().erase(this);
  }
  unload();
}

void TrainiumExecutable::unload() {
  if (nrt_model_t* model = model_.exchange(nullptr)) nrt().nrt_unload(model);
}

/// What one launch needs until it has ended.
struct TrainiumExecutable::Launch {
  nrt_tensor_set_t* in = nullptr;
  nrt_tensor_set_t* out = nullptr;
  std::vector<nrt_tensor_t*> tensors;

  Launch() {
    check(nrt().nrt_allocate_tensor_set(&in), "making a tensor set");
    check(nrt().nrt_allocate_tensor_set(&out), "making a tensor set");
  }
  ~Launch() {
    nrt().nrt_destroy_tensor_set(&in);
    nrt().nrt_destroy_tensor_set(&out);
    for (auto* tensor : tensors) nrt().nrt_tensor_free(&tensor);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

void TrainiumExecutable::fill(Launch& launch, const uint64_t* words) {
  auto add = [&](nrt_tensor_set_t* set, const LoweredProgram::Operand& operand) {
    nrt_tensor_t* tensor = nullptr;
    if (operand.kind == LoweredProgram::Operand::Kind::payload) {
      check(nrt().nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, opened_target().vnc(device_), operand.bytes, nullptr, &tensor),
            "allocating an argument");
      launch.tensors.push_back(tensor);
      uint64_t value[2];
      payload_bytes(operand, &words[operand.word], value);
      check(nrt().nrt_tensor_write(tensor, value, 0, operand.bytes), "copying an argument to the device");
    } else {
      auto* first = reinterpret_cast<const char*>(words[operand.word]) - operand.offset;
      tensor = memory_.slice(first, operand.bytes);
      launch.tensors.push_back(tensor);
    }
    check(nrt().nrt_add_tensor_to_tensor_set(set, operand.name.c_str(), tensor), "adding a tensor to a set");
  };
  for (const auto& operand : lowered_->inputs) add(launch.in, operand);
  for (const auto& operand : lowered_->outputs) add(launch.out, operand);
}

void TrainiumExecutable::run(const uint64_t* words) {
  auto on_host = load();
  if (!on_host) return run_loaded(words);
  if (auto* stream = TrainiumStream::running()) {
    while (stream->finish_oldest()) {
    }
  }
  on_host->run(words, memory_);
}

void TrainiumExecutable::run_loaded(const uint64_t* words) {
  auto launch = std::make_shared<Launch>();
  fill(*launch, words);
  auto* stream = TrainiumStream::running();
  std::unique_ptr<Request> request;
  NRT_STATUS status = queues_.execute(model_, launch->in, launch->out, &request);
  while (status == NRT_QUEUE_FULL) {
    // Another stream may have filled the queue: then there is nothing of ours to wait for.
    if (!stream || !stream->finish_oldest()) usleep(50);
    status = queues_.execute(model_, launch->in, launch->out, &request);
  }
  if (is_terminal(status)) lost_core().store(status);
  if (status != NRT_SUCCESS) raise_status(status, c10::str("running ", name(), " on neuron:", device_));
  if (stream) {
    stream->add({std::move(request), std::move(launch), name()});
  } else if (const NRT_STATUS end = request->wait(); end != NRT_SUCCESS) {
    raise_status(end, c10::str("running ", name(), " on neuron:", device_));
  }
}

TrainiumSequence::TrainiumSequence(std::shared_ptr<const Sequence> sequence, std::shared_ptr<const LoweredProgram> lowered, int device)
    : sequence_(std::move(sequence)),
      executable_(lowered, device, [sequence = sequence_, lowered, device] { return HostProgram::make(*sequence, lowered, device); }) {
  groups = 1;
  fused_calls = static_cast<int>(sequence_->calls.size());
  for (const auto& storage : sequence_->storages) {
    if (storage.kind == SequenceStorage::Kind::fresh && !storage.escapes) unwritten_bytes += storage.bytes;
  }
  if (executable_.load()) warn_of_the_host();
}

namespace {

std::unique_ptr<TrainiumExecutable> make_executable(std::shared_ptr<const Program> program, std::shared_ptr<const LoweredProgram> lowered,
                                                    int device) {
  auto on_host = [program = std::move(program), lowered, device] { return HostProgram::make(program, lowered, device); };
  return std::make_unique<TrainiumExecutable>(std::move(lowered), device, std::move(on_host));
}

/// A call whose lowering looks at its numbers: a NEFF for each set of values that is met.
class ExecutableOfValues final : public Executable {
 public:
  ExecutableOfValues(std::shared_ptr<const Program> program, std::shared_ptr<const LoweredProgram> lowered, int device)
      : program_(std::move(program)), lowered_(std::move(lowered)), device_(device) {}

  void run(const uint64_t* words) override { find(words).run(words); }
  const char* name() const override { return lowered_->name.c_str(); }

 private:
  static constexpr size_t kMost = 64;

  TrainiumExecutable& find(const uint64_t* words) {
    std::vector<uint64_t> values;
    const auto& call = program_->calls.at(0);
    for (const auto& slot : call.tensors)
      if (slot.host_scalar) values.insert(values.end(), words + slot.word, words + slot.word + 2);
    for (const auto& payload : call.payloads) values.insert(values.end(), words + payload.word, words + payload.word + 2);
    std::lock_guard lock(mutex_);
    if (auto known = by_values_.find(values); known != by_values_.end()) return *known->second;
    TORCH_CHECK(by_values_.size() < kMost, name(), " would need a program for each value of its numbers, and has met more than ", kMost,
                ". Pass what changes as a tensor of the device, or run the call on the CPU.");
    auto made = make_executable(program_, compiler().lower(*program_, opened_target().device_info(device_), words), device_);
    return *by_values_.emplace(std::move(values), std::move(made)).first->second;
  }

  const std::shared_ptr<const Program> program_;
  const std::shared_ptr<const LoweredProgram> lowered_;
  const int device_;
  std::mutex mutex_;
  std::map<std::vector<uint64_t>, std::unique_ptr<TrainiumExecutable>> by_values_;
};

class TrainiumPrograms final : public ProgramTarget {
 public:
  bool infers() const override { return true; }

  bool infer(Program& program, c10::ArrayRef<at::Tensor> tensors, std::string* why) override {
    return infer_program(program, tensors, why);
  }

  std::unique_ptr<Executable> load(std::shared_ptr<const Program> program, int device) override {
    auto lowered = compiler().lower(*program, opened_target().device_info(device), nullptr);
    if (lowered->hlo.empty()) return std::make_unique<ExecutableOfValues>(std::move(program), std::move(lowered), device);
    auto executable = make_executable(std::move(program), std::move(lowered), device);
    if (holding == nullptr && executable->load()) warn_of_the_host();
    return executable;
  }

  std::unique_ptr<LoadedSequence> load(std::shared_ptr<const Sequence> sequence, int device) override {
    auto lowered = compiler().lower(*sequence, opened_target().device_info(device));
    TORCH_CHECK_NOT_IMPLEMENTED(!lowered->hlo.empty(), sequence->name,
                                " has a call whose lowering looks at a number that comes with each launch");
    return std::make_unique<TrainiumSequence>(std::move(sequence), std::move(lowered), device);
  }

  bool hold_launches(Stream& stream) override {
    holding = &static_cast<TrainiumStream&>(stream);
    holding->hold();
    return true;
  }

  void release_launches(Stream& stream, Executable* instead, c10::ArrayRef<uint64_t> words) override {
    holding = nullptr;
    auto& held = static_cast<TrainiumStream&>(stream);
    if (instead != nullptr)
      held.replace_held(*instead, words.data(), words.size());
    else
      held.release_held();
  }

  bool trace(Program&, c10::ArrayRef<at::Tensor>, Stream&, torch::jit::Stack&) override {
    TORCH_INTERNAL_ASSERT(false, "a NeuronCore learns metadata by infer()");
  }

  void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) override { call_on_host(op, stack, stream); }

  void run_any_layout(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) override {
    call_on_host_any_layout(op, stack, stream);
  }

  uint64_t meta_mismatches() const override { return 0; }
};

}  // namespace

ProgramTarget& trainium_programs() {
  static auto* const programs = new TrainiumPrograms;
  return *programs;
}

}  // namespace neuron::trainium

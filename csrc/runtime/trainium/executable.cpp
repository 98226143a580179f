#include "csrc/runtime/trainium/executable.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

#include "csrc/program/explain.h"
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

/// The runtime must not be closed with models loaded.
void unload_all_models() {
  std::lock_guard lock(loaded_mutex);
  for (auto* executable : loaded()) executable->unload();
  loaded().clear();
}

/// A payload as the NEFF wants it.
void payload_bytes(const CompiledProgram::Operand& operand, const uint64_t* words, uint64_t* to) {
  using As = CompiledProgram::Operand::As;
  to[0] = words[0];
  if (operand.bytes > sizeof *to) to[1] = words[1];
  if (operand.as == As::float32) {
    double wide;
    std::memcpy(&wide, words, sizeof wide);
    const auto narrow = static_cast<float>(wide);
    std::memcpy(to, &narrow, sizeof narrow);
  } else if (operand.as == As::int32) {
    const auto narrow = static_cast<int32_t>(words[0]);
    std::memcpy(to, &narrow, sizeof narrow);
  } else if (operand.as == As::boolean) {
    to[0] = words[0] != 0;
  }
}

}  // namespace

TrainiumExecutable::TrainiumExecutable(std::string name, std::shared_ptr<const CompiledProgram> compiled, int device)
    : name_(std::move(name)),
      compiled_(std::move(compiled)),
      device_(device),
      memory_(opened_target().memory(device)),
      queues_(opened_target().queues(device)) {
  const NRT_STATUS status = nrt().nrt_load(compiled_->neff.data(), compiled_->neff.size(), device, 1, &model_);
  if (status != NRT_SUCCESS) raise_status(status, c10::str("loading the program of ", name_, " on neuron:", device));
  static const bool registered = (before_close(unload_all_models), true);
  (void)registered;
  std::lock_guard lock(loaded_mutex);
  loaded().insert(this);
}

TrainiumExecutable::~TrainiumExecutable() {
  {
    std::lock_guard lock(loaded_mutex);
    loaded().erase(this);
  }
  unload();
}

void TrainiumExecutable::unload() {
  if (model_) nrt().nrt_unload(model_);
  model_ = nullptr;
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
  auto add = [&](nrt_tensor_set_t* set, const CompiledProgram::Operand& operand) {
    nrt_tensor_t* tensor = nullptr;
    if (operand.kind == CompiledProgram::Operand::Kind::payload) {
      check(nrt().nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, device_, operand.bytes, nullptr, &tensor), "allocating an argument");
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
  for (const auto& operand : compiled_->inputs) add(launch.in, operand);
  for (const auto& operand : compiled_->outputs) add(launch.out, operand);
}

void TrainiumExecutable::run(const uint64_t* words) {
  TORCH_CHECK(model_ != nullptr, name_, " was launched while the process exits.");
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
  if (status != NRT_SUCCESS) raise_status(status, c10::str("running ", name_, " on neuron:", device_));
  if (stream) {
    stream->add({std::move(request), [launch] {}, name_});
  } else if (const NRT_STATUS end = request->wait(); end != NRT_SUCCESS) {
    raise_status(end, c10::str("running ", name_, " on neuron:", device_));
  }
}

namespace {

class TrainiumPrograms final : public ProgramTarget {
 public:
  bool infers() const override { return true; }

  bool infer(Program& program, c10::ArrayRef<at::Tensor> tensors, std::string* why) override {
    return infer_program(program, tensors, why);
  }

  std::unique_ptr<Executable> load(std::shared_ptr<const Program> program, int device) override {
    TORCH_CHECK(program_compiler != nullptr, "Programs for a NeuronCore are compiled by torch_neuronx.compiler, which needs Python.");
    auto compiled = program_compiler(*program, opened_target().device_info(device));
    return std::make_unique<TrainiumExecutable>(toString(program->calls.at(0).op.operator_name()), std::move(compiled), device);
  }

  bool trace(Program&, c10::ArrayRef<at::Tensor>, Stream&, torch::jit::Stack&) override {
    TORCH_INTERNAL_ASSERT(false, "a NeuronCore learns metadata by infer()");
  }

  void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) override { call_on_host(op, stack, stream); }

  void run_any_layout(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) override { call_on_host(op, stack, stream); }

  uint64_t meta_mismatches() const override { return 0; }
};

}  // namespace

ProgramTarget& trainium_programs() {
  static auto* const programs = new TrainiumPrograms;
  return *programs;
}

}  // namespace neuron::trainium

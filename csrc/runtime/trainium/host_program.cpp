#include "csrc/runtime/trainium/host_program.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>

#include "csrc/program/explain.h"
#include "csrc/runtime/emulated/executable.h"
#include "csrc/runtime/emulated/sequence.h"

namespace neuron::trainium {
namespace {

using Operand = LoweredProgram::Operand;

/// One that the stream's thread may run: those of other libraries may be Python.
bool has_cpu_kernel(const Program& program) {
  const auto& op = program.calls[0].op;
  const auto ns = op.operator_name().getNamespace();
  return (ns == "aten" || ns == "neuron") && op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

/// The executable of one call of a Sequence.
struct CallOnHost final : c10::intrusive_ptr_target {
  CallOnHost(std::shared_ptr<const Program> program, int device) : executable(std::move(program), device) {}
  EmulatedExecutable executable;
};

/// A storage of the device and its copy.
struct Copied {
  int word;
  char* first;  ///< on the device
  c10::DataPtr host;
};

}  // namespace

HostProgram::HostProgram(std::unique_ptr<Executable> executable, std::shared_ptr<const LoweredProgram> lowered, size_t words)
    : executable_(std::move(executable)), lowered_(std::move(lowered)), words_(words) {}

std::shared_ptr<HostProgram> HostProgram::make(std::shared_ptr<const Program> program, std::shared_ptr<const LoweredProgram> lowered,
                                               int device) {
  if (!has_cpu_kernel(*program)) return nullptr;
  const size_t words = static_cast<size_t>(program->input_words) + program->fresh.size();
  auto executable = std::make_unique<EmulatedExecutable>(std::move(program), device);
  return std::shared_ptr<HostProgram>(new HostProgram(std::move(executable), std::move(lowered), words));
}

std::shared_ptr<HostProgram> HostProgram::make(const Sequence& sequence, std::shared_ptr<const LoweredProgram> lowered, int device) {
  auto on_host = std::make_shared<Sequence>(sequence);
  for (auto& call : on_host->calls) {
    if (!has_cpu_kernel(*call.program)) return nullptr;
    auto own = c10::make_intrusive<CallOnHost>(call.program, device);
    call.executable = &own->executable;
    call.owner = std::move(own);
  }
  const auto escaping =
      std::count_if(sequence.storages.begin() + sequence.input_storages, sequence.storages.end(), [](const auto& s) { return s.escapes; });
  const size_t words = static_cast<size_t>(sequence.fresh_words()) + static_cast<size_t>(escaping) + 1;
  auto loaded = load_sequence(std::move(on_host), device);
  const size_t temporary_bytes = loaded->temporary_bytes;
  std::shared_ptr<HostProgram> made(new HostProgram(std::move(loaded), std::move(lowered), words));
  made->temporary_bytes_ = temporary_bytes;
  return made;
}

void HostProgram::run(const uint64_t* words, TrainiumMemory& memory) {
  std::vector<uint64_t> host(words, words + words_);
  std::vector<Copied> copied;
  const auto on_host = [&](const Operand& operand) -> Copied& {
    auto known = std::find_if(copied.begin(), copied.end(), [&](const Copied& one) { return one.word == operand.word; });
    if (known != copied.end()) return *known;
    auto* first = reinterpret_cast<char*>(words[operand.word]) - operand.offset;
    auto data = c10::GetCPUAllocator()->allocate(operand.bytes);
    host[operand.word] = reinterpret_cast<uint64_t>(static_cast<char*>(data.get()) + operand.offset);
    return copied.emplace_back(Copied{operand.word, first, std::move(data)});
  };
  for (const auto& operand : lowered_->inputs) {
    if (operand.kind != Operand::Kind::storage) continue;
    const Copied& one = on_host(operand);
    memory.read(one.host.get(), one.first, operand.bytes);
  }
  for (const auto& operand : lowered_->outputs) on_host(operand);
  c10::DataPtr temporaries;
  if (temporary_bytes_ > 0) {
    temporaries = c10::GetCPUAllocator()->allocate(temporary_bytes_);
    host.back() = reinterpret_cast<uint64_t>(temporaries.get());
  }
  {
    static auto* const mutex = new std::mutex;  // executables of the emulated target run one at a time
    std::lock_guard one_at_a_time(*mutex);
    set_compute_threads(at::get_num_threads());
    executable_->run(host.data());
  }
  for (const auto& operand : lowered_->outputs) {
    const Copied& one = on_host(operand);
    memory.write(one.first, one.host.get(), operand.bytes);
  }
  counters().host_launches.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace neuron::trainium

// Programs on NeuronCores: metadata from meta kernels, a NEFF per Program, and the host for what does not lower.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/program/program_compiler.h"
#include "csrc/program/program_target.h"
#include "csrc/runtime/trainium/nrt.h"

namespace neuron::trainium {

class TrainiumMemory;
class AsyncCore;

/// A NEFF loaded on one core.
class TrainiumExecutable final : public Executable {
 public:
  /// Throws what raise_status() makes of a failed load.
  TrainiumExecutable(std::string name, std::shared_ptr<const CompiledProgram> compiled, int device);
  ~TrainiumExecutable() override;

  void run(const uint64_t* words) override;
  const char* name() const override { return name_.c_str(); }

  void unload();

 private:
  struct Launch;
  void fill(Launch& launch, const uint64_t* words);

  const std::string name_;
  const std::shared_ptr<const CompiledProgram> compiled_;
  const int device_;
  TrainiumMemory& memory_;
  AsyncCore& queues_;
  nrt_model_t* model_ = nullptr;
};

/// The Programs of this target.
ProgramTarget& trainium_programs();

}  // namespace neuron::trainium

// Programs on NeuronCores: metadata from meta kernels, a NEFF per Program, and the host for what does not lower.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/program/program_compiler.h"
#include "csrc/program/program_target.h"
#include "csrc/runtime/trainium/host_program.h"
#include "csrc/runtime/trainium/nrt.h"

namespace neuron::trainium {

class TrainiumMemory;
class AsyncCore;

/// A Program on one core: lowered, and loaded as a NEFF when load() is called or at its first run.
class TrainiumExecutable final : public Executable {
 public:
  using MakeHostProgram = std::function<std::shared_ptr<HostProgram>()>;

  /// `on_host` makes what runs while there is no NEFF, under TORCH_NEURONX_COMPILE=background.
  TrainiumExecutable(std::shared_ptr<const LoweredProgram> lowered, int device, MakeHostProgram on_host);
  ~TrainiumExecutable() override;

  /// Compiles and loads it. Null once it is loaded; while it is still being compiled in the background, what runs in its place. Throws what
  /// the compiler does, and what raise_status() makes of a failed load. Thread safe.
  std::shared_ptr<HostProgram> load();

  void run(const uint64_t* words) override;
  const char* name() const override { return lowered_->name.c_str(); }

  void unload();

 private:
  struct Launch;
  void fill(Launch& launch, const uint64_t* words);
  void run_loaded(const uint64_t* words);

  const std::shared_ptr<const LoweredProgram> lowered_;
  const int device_;
  TrainiumMemory& memory_;
  AsyncCore& queues_;
  const MakeHostProgram make_host_program_;
  std::mutex mutex_;
  std::shared_ptr<const PendingNeff> pending_;
  std::shared_ptr<HostProgram> on_host_;
  std::atomic<nrt_model_t*> model_{nullptr};
};

/// A graph or a window of calls as one NEFF.
class TrainiumSequence final : public LoadedSequence {
 public:
  TrainiumSequence(std::shared_ptr<const Sequence> sequence, std::shared_ptr<const LoweredProgram> lowered, int device);

  void run(const uint64_t* words) override { executable_.run(words); }
  const char* name() const override { return executable_.name(); }
  bool ready() override { return executable_.load() == nullptr; }

 private:
  const std::shared_ptr<const Sequence> sequence_;
  TrainiumExecutable executable_;
};

/// The Programs of this target.
ProgramTarget& trainium_programs();

}  // namespace neuron::trainium

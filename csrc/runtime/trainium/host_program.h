// Programs on the host, in the place of NEFFs that are still being compiled. See "Compiling in the background" in docs/dev/trainium.md.
#pragma once

#include <memory>
#include <vector>

#include "csrc/program/program_compiler.h"
#include "csrc/runtime/executable.h"
#include "csrc/runtime/trainium/memory.h"

namespace neuron::trainium {

/// A Program or a Sequence in the hands of the emulated target's executables, on copies of the storages that its NEFF would read and write.
class HostProgram {
 public:
  /// Null when one of the calls has no CPU kernel.
  static std::shared_ptr<HostProgram> make(std::shared_ptr<const Program> program, std::shared_ptr<const LoweredProgram> lowered,
                                           int device);
  static std::shared_ptr<HostProgram> make(const Sequence& sequence, std::shared_ptr<const LoweredProgram> lowered, int device);

  /// What a launch with `words` does, done when it returns. Earlier work on the same memory must have ended. Throws what the kernels throw,
  /// and then writes nothing.
  void run(const uint64_t* words, TrainiumMemory& memory);

 private:
  HostProgram(std::unique_ptr<Executable> executable, std::shared_ptr<const LoweredProgram> lowered, size_t words);

  const std::unique_ptr<Executable> executable_;
  const std::shared_ptr<const LoweredProgram> lowered_;
  const size_t words_;          ///< of a launch
  size_t temporary_bytes_ = 0;  ///< of the block that the last word names
};

}  // namespace neuron::trainium

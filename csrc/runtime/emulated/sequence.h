// Sequences on the emulated target: steps over a table of base addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/program/program_target.h"

namespace neuron {

/// One launch of a Sequence, as its steps see it.
struct SequenceLaunch {
  const uint64_t* bases;    ///< by storage: device address of its base (use host_address()); 0: no memory, or internal to a step
  const uint64_t* scalars;  ///< two words per scalar input
  uint64_t seed = 0;        ///< of the generator
  uint64_t draw = 0;        ///< offset of the launch's first Philox word
};

/// A part of a Sequence that runs in one go: a whole kernel, or a fused group. Steps run one at a time per process.
class SequenceStep {
 public:
  virtual ~SequenceStep() = default;
  virtual void run(const SequenceLaunch& launch) = 0;
  /// For error messages and profiles.
  virtual const char* name() const = 0;

  bool serial = true;         ///< never uses more than one host thread
  std::vector<int> calls;     ///< which calls it stands for, ascending
  std::vector<int> internal;  ///< fresh storages that need no memory: they live and die inside it
  size_t scratch_bytes = 0;   ///< what it needs of its own while it runs, for statistics
};

/// See ProgramTarget::load().
std::unique_ptr<LoadedSequence> load_sequence(std::shared_ptr<const Sequence> sequence, int device);

}  // namespace neuron

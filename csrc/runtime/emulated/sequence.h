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

/// One word of a call, at this launch.
inline uint64_t word_of(const WordSource& source, const SequenceLaunch& launch) {
  switch (source.kind) {
    case WordSource::Kind::constant:
      return static_cast<uint64_t>(source.value);
    case WordSource::Kind::address: {
      const uint64_t base = launch.bases[source.index];
      return base == 0 ? 0 : base + static_cast<uint64_t>(source.value);
    }
    case WordSource::Kind::scalar:
      return launch.scalars[2 * source.index + source.value];
    case WordSource::Kind::seed:
      return launch.seed;
    case WordSource::Kind::draw:
      return launch.draw + static_cast<uint64_t>(source.value);
  }
  return 0;
}

/// A part of a Sequence that runs in one go: a whole kernel, or a fused group. Steps run one at a time per process.
class SequenceStep {
 public:
  virtual ~SequenceStep() = default;
  virtual void run(const SequenceLaunch& launch) = 0;
  /// For error messages and profiles.
  virtual const char* name() const = 0;

  bool serial = true;         ///< never uses more than one host thread
  int groups = 0;             ///< fused groups in it; 0: a whole kernel
  std::vector<int> calls;     ///< which calls it stands for, ascending
  std::vector<int> internal;  ///< fresh storages that need no memory: they live and die inside it
  size_t scratch_bytes = 0;   ///< what it needs of its own while it runs, for statistics
};

/// See ProgramTarget::load().
std::unique_ptr<LoadedSequence> load_sequence(std::shared_ptr<const Sequence> sequence, int device);

}  // namespace neuron

// Runs a TileGroup: one loop over tiles, whose operands stay in L1 between the steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "csrc/program/sequence_groups.h"
#include "csrc/program/tile_group.h"
#include "csrc/runtime/emulated/kernels/library.h"
#include "csrc/runtime/emulated/sequence.h"
#include "csrc/runtime/executable.h"

namespace neuron {

/// A group made ready: functions instead of names. One launch at a time, as the compute slot sees to.
class TileLoop {
 public:
  explicit TileLoop(TileGroup group);

  /// `words`: what the group's WordRefs index.
  void run(const uint64_t* words, int threads);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  bool small() const;  ///< not worth a second thread

 private:
  struct Step {
    TileStep::What what;
    uint8_t size;  ///< of an element, to gather or scatter
    int out;
    int in[3];
    tiles::TileFunction function;
    const tiles::Number* numbers;
  };

  void bind(const uint64_t* words);
  void run_tiles(int64_t first, int64_t last) const;
  void fill_constants(char* const* tiles, int64_t count) const;

  const TileGroup group_;
  const tiles::Library& library_;
  std::vector<Step> steps_;
  std::vector<int> fetched_;  ///< memories that steps use where they lie; see Note [Next tile] in fused.cpp
  std::vector<int64_t> scratch_offsets_;
  int64_t scratch_bytes_ = 0;
  // Of the launch at hand.
  std::vector<tiles::Number> numbers_;
  std::vector<char*> bases_;
};

/// A Program that is one group, or a few that run one after another.
class FusedExecutable final : public Executable {
 public:
  FusedExecutable(std::vector<TileGroup> groups, std::string name, bool serial);
  void run(const uint64_t* words) override;
  const char* name() const override { return name_.c_str(); }

 private:
  std::vector<TileLoop> loops_;
  const std::string name_;
};

/// A group of a Sequence as one of its steps.
class GroupStep final : public SequenceStep {
 public:
  /// `storages`: how many the Sequence has, see Note [Words of a group].
  GroupStep(SequenceGroup group, int storages);
  void run(const SequenceLaunch& launch) override;
  const char* name() const override { return name_.c_str(); }

 private:
  struct Word {
    bool scalar;
    int index;
  };
  std::vector<Word> sources_;
  std::vector<uint64_t> words_;
  std::optional<TileLoop> loop_;
  std::string name_;
};

}  // namespace neuron

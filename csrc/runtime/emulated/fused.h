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

  /// `words`: what the group's WordRefs index. Throws when a number does not fit the type that it is wanted in.
  void bind(const uint64_t* words);
  /// Elements [first, last) of the launch that was bound, whole rows where the group has rows. Any thread; each element once.
  void run_tiles(int64_t first, int64_t last) const;

  int64_t elements() const { return group_.elements; }
  int64_t row() const { return group_.row; }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  struct Step {
    TileStep::What what;
    uint8_t size;  ///< of an element, to gather or scatter
    int out;
    int in[3];
    tiles::TileFunction function;
    const tiles::Number* numbers;
    int fetches_end;  ///< it asks for the lines of fetches_ up to this one, from where the step before it stopped
    tiles::TileFunction round;
    tiles::Span span;
  };
  /// Cache lines of a later tile; see Note [Later tiles] in fused.cpp.
  struct Fetch {
    int memory;
    int offset;  ///< bytes beyond the tile at hand
    int lines;
  };
  /// An operand that lies in memory.
  struct Moving {
    int step;
    int operand;  ///< -1: the result
    int size;     ///< of a value
    tiles::Span span;
  };

  void plan_fetches();
  int64_t count_of(tiles::Span span, int64_t elements) const { return tiles::count_of(span, elements, group_.row); }
  void run_before(char* const* at) const;
  void move_rows(const Step& step, char* const* at, int64_t begin, int64_t count) const;
  void fill_constants(char* const* tiles, int64_t count) const;

  const TileGroup group_;
  const tiles::Library& library_;
  std::vector<Step> before_;  ///< for what all rows share, once for each run of tiles
  std::vector<Step> steps_;
  std::vector<int> in_place_;  ///< memories that steps use where they lie
  std::vector<Moving> moving_;
  std::vector<Fetch> fetches_;
  std::vector<int64_t> scratch_offsets_;
  int64_t scratch_bytes_ = 0;
  // Of the launch at hand.
  std::vector<tiles::Number> numbers_;
  std::vector<char*> bases_;
};

/// Which memory groups touch, by the words that their addresses come from.
class TouchedMemory {
 public:
  /// Whether one writes what the other touches. Else they may run in any order, or at the same time.
  bool meets(const TileGroup& group) const;
  void add(const TileGroup& group);
  const std::vector<int>& written() const { return written_; }

 private:
  std::vector<int> touched_, written_;
};

/// Groups that have nothing to do with each other, in one go: an optimizer's update is one for each parameter, and most are too small to be
/// worth a team of threads.
class TileLoops {
 public:
  explicit TileLoops(std::vector<TileGroup> groups);

  /// A loop that cannot be bound is left out, and why is thrown after the others have run, as the calls would do one by one.
  void run(const uint64_t* words, int threads);

  bool small() const { return small_; }  ///< not worth a second thread
  int64_t scratch_bytes() const;

 private:
  struct Piece {
    int loop;
    int64_t first, last;
  };
  void divide(int threads);

  std::vector<TileLoop> loops_;
  std::vector<char> bound_;  ///< by loop, of the launch at hand
  bool small_;
  std::vector<Piece> pieces_;
  int pieces_for_ = 0;  ///< threads
};

/// A Program that is one group, or a few that run one after another.
class FusedExecutable final : public Executable {
 public:
  FusedExecutable(std::vector<TileGroup> groups, std::string name, bool serial);
  void run(const uint64_t* words) override;
  const char* name() const override { return name_.c_str(); }

 private:
  std::vector<TileLoops> loops_;
  const std::string name_;
};

/// Groups of a Sequence that have nothing to do with each other, as one of its steps.
class GroupStep final : public SequenceStep {
 public:
  /// `storages`: how many the Sequence has, see Note [Words of a group].
  GroupStep(std::vector<SequenceGroup> groups, int storages);
  void run(const SequenceLaunch& launch) override;
  const char* name() const override { return name_.c_str(); }

 private:
  struct Word {
    bool scalar;
    int index;
  };
  std::vector<Word> sources_;
  std::vector<uint64_t> words_;
  std::optional<TileLoops> loops_;
  std::string name_;
};

}  // namespace neuron

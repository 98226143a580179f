// Divides the calls of a Sequence into steps: loops over tiles, and whole kernels.
#pragma once

#include <optional>
#include <vector>

#include "csrc/program/sequence.h"
#include "csrc/program/tile_group.h"

namespace neuron {

/// One step. Steps run in the order of the list; their calls may not be in the order of the Sequence, but no two calls that touch one
/// storage, one of them writing, have changed places. A `_foreach_` call may be in several steps, an element or more in each.
struct SequenceGroup {
  std::vector<int> calls;          ///< ascending
  std::optional<TileGroup> group;  ///< nothing: a whole kernel, and `calls` is one
  std::vector<int> internal;       ///< fresh storages that live in tiles alone
};

/// See Note [Words of a group] for what the groups' WordRefs index.
//
// Note [Words of a group]
// Base addresses of the Sequence's storages, by storage; then two words for each scalar input.
std::vector<SequenceGroup> group_calls(const Sequence& sequence);

}  // namespace neuron

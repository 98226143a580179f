// Groups calls into loops over tiles (tile_group.h).
#pragma once

#include <memory>
#include <vector>

#include "csrc/program/tile_group.h"
#include "csrc/program/tile_plan.h"

namespace neuron {

/// Builds one group, call by call.
class GroupBuilder {
 public:
  GroupBuilder();
  ~GroupBuilder();
  GroupBuilder(const GroupBuilder&) = delete;
  GroupBuilder& operator=(const GroupBuilder&) = delete;

  /// Adds a call; false, with nothing changed, when it cannot be in this group: no tile function for its types, another iteration space,
  /// memory that overlaps in part.
  bool add(const TileCall& call);

  bool empty() const;

  /// The group. The builder is used up. `internal`, when given: storages that nobody outside of the group reads. What is written to them
  /// stays in tiles; those for which that cannot be are taken off the list.
  TileGroup finish(std::vector<int>* internal = nullptr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace neuron

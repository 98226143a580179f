// Programs of one call as tile groups: what eager loads where a row serves the call.
#pragma once

#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/program/tile_group.h"

namespace neuron {

/// A Program of one call as groups to be run one after another: one, or one for each tensor of a `_foreach_` call. None when its overload
/// has no row or the row does not serve these types and layouts.
std::vector<TileGroup> groups_of_one(const Program& program);

/// What an overload that writes one of its arguments returns, when that follows from the metadata alone (a row serves it, and it can
/// neither fail nor resize): fills program.returns. False: ask the kernel.
bool infer_written(Program& program);

}  // namespace neuron

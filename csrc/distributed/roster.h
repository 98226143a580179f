// Who is in a group: what its ranks agree on, through the store, before they do anything together.
//
// The store may hold what an earlier group of the same name wrote: torchrun (2.13) keeps one store for all attempts of a job, and a script
// may end its group and make it again. So nothing that is found there is believed because it is there. Each rank writes its facts with a
// number drawn for this group; rank 0 reads all of them, writes the roster under a number of its own, and declares it valid once each rank
// has answered with that number. A rank answers when the roster holds the number that the rank itself has drawn, so a roster with a stale
// entry is never answered by all, and rank 0, which keeps looking, writes another.
//
//   neuron/<rank>        facts of a rank
//   neuron/roster        number, then the facts of all ranks, a line each
//   neuron/seen/<rank>   number of the roster that the rank has found itself in
//   neuron/valid         number of the roster that all have found themselves in
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "csrc/distributed/peer.h"

namespace neuron::distributed {

struct Roster {
  std::string number;  ///< of this group and no other, ever: a prefix for what else its ranks put into the store
  std::vector<ProcessFacts> ranks;
};

/// Waits until all ranks of the group have called it. Throws DistBackendError after `timeout`, with the ranks that are missing.
Roster agree_on_roster(c10d::Store& store, int rank, int size, ProcessFacts mine, std::chrono::milliseconds timeout);

}  // namespace neuron::distributed

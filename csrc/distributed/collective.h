// Collectives between ranks of one host, over a Channel.
#pragma once

#include <string>
#include <vector>

#include "csrc/distributed/channel.h"
#include "csrc/distributed/operation.h"
#include "csrc/distributed/reduce.h"

namespace neuron::distributed {

enum class Kind : uint8_t { broadcast, allreduce, reduce, allgather, gather, scatter, reduce_scatter, alltoall, barrier };

/// A collective as one rank sees it. Which buffers there are, by kind (W: ranks of the group):
///
///   kind            inputs                     outputs
///   broadcast       1, used on the root        1, used on the others (may be the input)
///   allreduce       1                          1 (the same memory)
///   reduce          1                          1, on the root (may be the input)
///   allgather       1                          W; those that are the input already are left alone
///   gather          1                          W, on the root
///   scatter         W, on the root             1
///   reduce_scatter  W                          1
///   alltoall        W                          W
///   barrier         none                       none
///
/// Sizes may differ by rank where the two ends agree.
struct CollectiveCall {
  Kind kind = Kind::barrier;
  Dtype dtype = Dtype::bytes;
  Reduction reduction = Reduction::none;
  int root = 0;
  double factor = 1;   ///< of premul_sum
  int core = -1;       ///< of the host, that this rank uses; -1: not known
  uint64_t count = 0;  ///< bytes that must agree on all ranks; 0 where they may differ
  std::vector<Buffer> inputs, outputs;
};

class Collective final : public Operation {
 public:
  /// `channel` must outlive it.
  Collective(Channel& channel, CollectiveCall call);

  Progress step(bool light) override;
  std::string awaited() const override;
  bool needs_rank(int rank) const override;

 private:
  enum class Stage : uint8_t { waiting, arriving, reducing, leaving, travelling };
  void publish();
  void check_signatures();
  bool any_direct();
  void compute();
  void copy_from(int peer);
  void reduce_part(size_t begin, size_t end, char* out);
  void fetch_reduced();
  size_t part_begin(int part) const;
  const char* input_of(int peer, size_t bytes);

  Channel& channel_;
  const CollectiveCall call_;
  uint64_t index_ = 0;  ///< among the channel's collectives
  Stage stage_ = Stage::waiting;
  bool split_ = false;  ///< an allreduce of which each rank reduces a part
};

/// "ALLREDUCE SUM", for errors and the flight recorder.
std::string describe(const CollectiveCall& call);

}  // namespace neuron::distributed

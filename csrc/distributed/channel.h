// The shared memory of a group whose ranks are on one host: phase counters, what each rank publishes, and mailboxes for send and receive.
//
// Note [Phases]
// Collectives of a group are in the same order on all ranks, and each passes the same number of phases on all ranks. A rank arrives at a
// phase by raising the group's counter; the phase is passed when all have. Nobody can be two phases ahead, so one counter serves all
// phases.
//
// Note [Slots]
// Each rank has two slots, used in turn. It writes its slot before it arrives at a collective's first phase. At its arrival at the next
// collective's it has read all slots of this one, and nobody uses this slot again before all have arrived there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/distributed/operation.h"
#include "csrc/distributed/peer.h"

namespace neuron::distributed {

constexpr size_t kInlineBytes = 16 << 10;  ///< inputs of up to this size travel in the slot
constexpr size_t kMailBytes = 4 << 10;     ///< the same for a message
constexpr int kMails = 8;                  ///< messages from one rank to another that may be under way at once

/// What must agree on all ranks for a collective to make sense.
struct Signature {
  uint64_t operation = 0;  ///< kind, dtype, reduction, root
  uint64_t count = 0;      ///< bytes, where they must agree
  bool operator==(const Signature&) const = default;
};

struct Slot {
  Signature signature;
  char text[120];  ///< the operation in words, for errors
  uint64_t epoch;
  double factor;  ///< of premul_sum
  uint32_t pieces;
  uint32_t direct;  ///< regions, not inline
  int32_t core;     ///< of the host, that the rank uses
  // Region pieces[size], then char data[kInlineBytes]
};

struct Mail {
  enum State : uint32_t { empty, posted, taken, refused };
  std::atomic<uint32_t> state;
  uint32_t direct;
  int64_t tag;
  uint64_t order;  ///< among the sender's messages to this receiver
  uint64_t epoch;
  uint64_t bytes;
  uint64_t dtype;
  Region region;
  char data[kMailBytes];
};

class Channel {
 public:
  /// Shared memory for a group of `size`; rank 0 makes it, the others open it.
  static SharedBlock make_block(int size);

  /// `global_ranks` are the ranks' numbers in the whole job, for errors; empty when not known.
  Channel(int rank, int size, SharedBlock block, std::vector<std::shared_ptr<PeerProcess>> peers, std::vector<uint64_t> global_ranks);

  const int rank;
  const int size;

  // ---- Phases. ----
  void arrive();
  bool passed() const;
  /// Ranks that have not arrived at the phase at which this rank is.
  std::vector<int> missing() const;

  // ---- Slots. ----
  Slot& slot(int rank, uint64_t collective);
  Region* pieces(Slot& slot) { return reinterpret_cast<Region*>(&slot + 1); }
  char* data(Slot& slot) { return reinterpret_cast<char*>(pieces(slot) + size); }
  /// Where piece `index` of `rank`'s slot lies in this process.
  const char* piece(int rank, Slot& slot, int index);

  /// Memory that another rank published.
  const char* peer_memory(int rank, const Region& region, uint64_t epoch) { return peers_[rank]->map(region, epoch); }

  // ---- Mailboxes. ----
  Mail& mail(int from, int to, int index);

  // ---- Ranks. ----
  bool alive(int rank);
  void ring(int rank);
  void ring_all();
  enum Standing : uint32_t { taking_part, left, aborted };
  void set_standing(Standing standing);
  Standing standing(int rank) const;
  /// Says what this rank has entered, in words, for the others' errors.
  void note_entered(const std::string& text);
  /// "rank 2 (process 1234), which last entered ALLREDUCE #3"
  std::string describe(int rank) const;

  /// How others find `buffer`. Throws c10::Error when its memory cannot be shared.
  static Region region_of(const Buffer& buffer);

 private:
  struct RankState;
  struct Layout;
  RankState& state(int rank) const;

  SharedBlock block_;
  const std::vector<std::shared_ptr<PeerProcess>> peers_;  // null at `rank`
  const std::vector<uint64_t> global_ranks_;
  uint64_t phase_ = 0;
};

}  // namespace neuron::distributed

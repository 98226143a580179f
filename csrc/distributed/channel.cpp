#include "csrc/distributed/channel.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/runtime/shared_memory.h"
#include "csrc/runtime/target.h"

namespace neuron::distributed {

struct Channel::RankState {
  alignas(64) std::atomic<uint64_t> phases;
  std::atomic<uint32_t> standing;
  char entered[200];  // written by the rank alone; read when something is wrong anyway
};

/// Offsets in the block: the counter, then the ranks' states, slots and mailboxes.
struct Channel::Layout {
  explicit Layout(int size)
      : slot_bytes((sizeof(Slot) + size * sizeof(Region) + kInlineBytes + 63) / 64 * 64),
        states(64),
        slots(states + size * sizeof(RankState)),
        mails((slots + 2 * size * slot_bytes + 4095) / 4096 * 4096),
        bytes(mails + sizeof(Mail) * kMails * size * size) {}
  const size_t slot_bytes, states, slots, mails, bytes;
};

SharedBlock Channel::make_block(int size) { return SharedBlock::create("neuron-group", Layout(size).bytes); }

Channel::Channel(int rank, int size, SharedBlock block, std::vector<std::shared_ptr<PeerProcess>> peers, std::vector<uint64_t> global_ranks)
    : rank(rank), size(size), block_(std::move(block)), peers_(std::move(peers)), global_ranks_(std::move(global_ranks)) {
  TORCH_CHECK(block_.bytes() == Layout(size).bytes, "The shared memory of the process group has ", block_.bytes(), " bytes, not ",
              Layout(size).bytes, ": the ranks run different versions of TorchNeuron.");
}

Channel::RankState& Channel::state(int of) const { return reinterpret_cast<RankState*>(block_.data() + Layout(size).states)[of]; }

void Channel::arrive() {
  state(rank).phases.store(++phase_, std::memory_order_seq_cst);
  auto& counter = *reinterpret_cast<std::atomic<uint64_t>*>(block_.data());
  if (counter.fetch_add(1, std::memory_order_seq_cst) + 1 == phase_ * static_cast<uint64_t>(size)) ring_all();
}

bool Channel::passed() const {
  const auto& counter = *reinterpret_cast<const std::atomic<uint64_t>*>(block_.data());
  return counter.load(std::memory_order_seq_cst) >= phase_ * static_cast<uint64_t>(size);
}

std::vector<int> Channel::missing() const {
  std::vector<int> ranks;
  for (int other = 0; other < size; ++other)
    if (state(other).phases.load(std::memory_order_seq_cst) < phase_) ranks.push_back(other);
  return ranks;
}

Slot& Channel::slot(int of, uint64_t collective) {
  const Layout layout(size);
  return *reinterpret_cast<Slot*>(block_.data() + layout.slots + (2 * of + collective % 2) * layout.slot_bytes);
}

const char* Channel::piece(int of, Slot& from, int index) {
  const Region& region = pieces(from)[index];
  if (!from.direct) return data(from) + region.offset;
  return peers_[of]->map(region, from.epoch);
}

Mail& Channel::mail(int from, int to, int index) {
  return reinterpret_cast<Mail*>(block_.data() + Layout(size).mails)[(from * size + to) * kMails + index];
}

bool Channel::alive(int of) { return of == rank || peers_[of]->alive(); }

void Channel::ring(int of) {
  if (of == rank) return;
  peers_[of]->bell().ring();
}

void Channel::ring_all() {
  for (int other = 0; other < size; ++other) ring(other);
}

void Channel::set_standing(Standing standing) {
  state(rank).standing.store(standing, std::memory_order_seq_cst);
  ring_all();
}

Channel::Standing Channel::standing(int of) const { return static_cast<Standing>(state(of).standing.load(std::memory_order_seq_cst)); }

void Channel::note_entered(const std::string& text) {
  auto& mine = state(rank);
  const size_t length = std::min(text.size(), sizeof mine.entered - 1);
  std::memcpy(mine.entered, text.data(), length);
  mine.entered[length] = 0;
}

std::string Channel::describe(int of) const {
  const auto& its = state(of);
  const std::string entered(its.entered, strnlen(its.entered, sizeof its.entered));
  const std::string process = std::to_string(of == rank ? getpid() : peers_[of]->pid);
  const bool renumbered = static_cast<size_t>(of) < global_ranks_.size() && global_ranks_[of] != static_cast<uint64_t>(of);
  return "rank " + std::to_string(of) + " (" + (renumbered ? "global rank " + std::to_string(global_ranks_[of]) + ", " : "") + "process " +
         process + "), which " + (entered.empty() ? "has entered no collective of this group" : "last entered " + entered);
}

Region Channel::region_of(const Buffer& buffer) {
  if (buffer.bytes == 0) return {};
  if (buffer.device < 0) {
    const SharedRange range = place_range(buffer.data);
    TORCH_INTERNAL_ASSERT(range.fd >= 0, "host memory that is not staged");
    return {range.fd, range.offset, buffer.bytes};
  }
  auto* memory = dynamic_cast<SharedMemory*>(&target().memory(buffer.device));
  TORCH_CHECK_NOT_IMPLEMENTED(memory, "Memory of neuron:", buffer.device, " cannot be shared between processes");
  const SharedRange range = memory->share(buffer.data);
  TORCH_CHECK(range.fd >= 0,
              "A tensor that was received from another process through torch.multiprocessing cannot take part in a "
              "collective: use tensor.clone()");
  return {range.fd, range.offset, buffer.bytes};
}

}  // namespace neuron::distributed

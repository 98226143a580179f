#include "csrc/distributed/collective.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/distributed/modelled.h"
#include "csrc/runtime/large_copy.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/shared_memory.h"

namespace neuron::distributed {
namespace {

struct KindFacts {
  const char* name;
  bool reduces;
  bool from_root;  ///< only the root's input is read
  bool to_root;    ///< only the root has a result
};
constexpr KindFacts kKinds[] = {
    {"BROADCAST", false, true, false},      {"ALLREDUCE", true, false, false}, {"REDUCE", true, false, true},
    {"ALLGATHER", false, false, false},     {"GATHER", false, false, true},    {"SCATTER", false, true, false},
    {"REDUCE_SCATTER", true, false, false}, {"ALLTOALL", false, false, false}, {"BARRIER", false, false, false}};

const KindFacts& facts(Kind kind) { return kKinds[static_cast<int>(kind)]; }

size_t total(const std::vector<Buffer>& buffers) {
  size_t bytes = 0;
  for (const auto& buffer : buffers) bytes += buffer.bytes;
  return bytes;
}

Signature signature_of(const CollectiveCall& call) {
  const bool rooted = facts(call.kind).from_root || facts(call.kind).to_root;
  return {static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 | static_cast<uint64_t>(call.reduction) << 16 |
              static_cast<uint64_t>(rooted ? call.root + 1 : 0) << 32,
          call.count};
}

}  // namespace

std::string describe(const CollectiveCall& call) {
  std::string text = facts(call.kind).name;
  if (facts(call.kind).reduces) text += std::string(" ") + name_of(call.reduction);
  return text;
}

Collective::Collective(Channel& channel, CollectiveCall call) : channel_(channel), call_(std::move(call)) {
  heavy = std::max(total(call_.inputs), total(call_.outputs)) > kInlineBytes;
}

std::string Collective::awaited() const {
  std::string text;
  for (int rank : channel_.missing()) text += (text.empty() ? "" : "; ") + channel_.describe(rank);
  return text.empty() ? "nothing" : text;
}

bool Collective::needs_rank(int rank) const {
  if (stage_ == Stage::waiting) return true;
  if (stage_ == Stage::travelling) return false;
  const auto missing = channel_.missing();
  return std::find(missing.begin(), missing.end(), rank) != missing.end();
}

Operation::Progress Collective::step(bool light) {
  switch (stage_) {
    case Stage::waiting:
      index_ = record->sequence;
      channel_.note_entered(record->describe());
      publish();
      channel_.arrive();
      stage_ = Stage::arriving;
      return Progress::moved;

    case Stage::arriving: {
      if (!channel_.passed() || (light && heavy)) return Progress::none;
      check_signatures();
      const bool direct = any_direct();
      split_ = direct && call_.kind == Kind::allreduce;
      if (split_) {
        const size_t begin = part_begin(channel_.rank), end = part_begin(channel_.rank + 1);
        reduce_part(begin, end, host_address(call_.outputs[0].data) + begin);
        stage_ = Stage::reducing;
      } else {
        compute();
        stage_ = direct ? Stage::leaving : Stage::travelling;
      }
      if (direct) channel_.arrive();
      break;
    }
    case Stage::reducing:
      if (!channel_.passed() || (light && heavy)) return Progress::none;
      fetch_reduced();
      channel_.arrive();
      stage_ = Stage::leaving;
      return Progress::moved;

    case Stage::leaving:
      if (!channel_.passed()) return Progress::none;
      stage_ = Stage::travelling;
      break;

    case Stage::travelling:
      break;
  }
  if (stage_ != Stage::travelling) return Progress::moved;
  if (const auto link = modelled().link; link.count() > 0 && not_before == Clock::time_point::min()) not_before = Clock::now() + link;
  return Clock::now() >= not_before ? Progress::finished : Progress::none;
}

void Collective::publish() {
  Slot& mine = channel_.slot(channel_.rank, index_);
  mine.signature = signature_of(call_);
  const std::string text = record->describe();
  std::memcpy(mine.text, text.c_str(), std::min(text.size() + 1, sizeof mine.text));
  mine.text[sizeof mine.text - 1] = 0;
  mine.factor = call_.factor;
  mine.core = call_.core;
  const bool reads_mine = !facts(call_.kind).from_root || call_.root == channel_.rank;
  mine.pieces = reads_mine ? static_cast<uint32_t>(call_.inputs.size()) : 0;
  mine.direct = reads_mine && total(call_.inputs) > kInlineBytes;
  mine.epoch = segments_released.load(std::memory_order_seq_cst);
  size_t offset = 0;
  for (uint32_t i = 0; i < mine.pieces; ++i) {
    const Buffer& input = call_.inputs[i];
    if (mine.direct) {
      channel_.pieces(mine)[i] = Channel::region_of(input);
    } else {
      if (input.bytes) std::memcpy(channel_.data(mine) + offset, host_address(input.data), input.bytes);
      channel_.pieces(mine)[i] = {-1, offset, input.bytes};
      offset += input.bytes;
    }
  }
}

void Collective::check_signatures() {
  const Signature mine = signature_of(call_);
  for (int peer = 0; peer < channel_.size; ++peer) {
    Slot& slot = channel_.slot(peer, index_);
    TORCH_CHECK_WITH(DistBackendError, slot.signature == mine, "The ranks of this process group do not call the same collective: rank ",
                     channel_.rank, " is in ", record->describe(), ", but rank ", peer, " in ", slot.text,
                     ". All ranks must call the same collectives in the same order, with the same dtypes, sizes, operators and roots.");
    TORCH_CHECK_WITH(DistBackendError, peer == channel_.rank || call_.core < 0 || slot.core != call_.core, "Ranks ", channel_.rank, " and ",
                     peer, " both use NeuronCore ", call_.core,
                     " of this host. Give each rank a core of its own: torch.neuron.set_device(int(os.environ[\"LOCAL_RANK\"])) before the "
                     "first tensor, or another NEURON_RT_VISIBLE_CORES for each process.");
  }
}

bool Collective::any_direct() {
  for (int peer = 0; peer < channel_.size; ++peer)
    if (channel_.slot(peer, index_).direct) return true;
  return false;
}

/// What `peer` gives to this rank, which expects `bytes`.
const char* Collective::input_of(int peer, size_t bytes) {
  Slot& slot = channel_.slot(peer, index_);
  const int index = slot.pieces > 1 ? channel_.rank : 0;
  const size_t given = slot.pieces ? channel_.pieces(slot)[index].bytes : 0;
  TORCH_CHECK_WITH(DistBackendError, given == bytes, record->describe(), ": rank ", peer, " gives rank ", channel_.rank, " ", given,
                   " bytes, but rank ", channel_.rank, " expects ", bytes);
  if (peer == channel_.rank && slot.direct) return host_address(call_.inputs[index].data);
  return channel_.piece(peer, slot, index);
}

void Collective::copy_from(int peer) {
  const Buffer& output = call_.outputs.size() > 1 ? call_.outputs[peer] : call_.outputs[0];
  const char* from = input_of(peer, output.bytes);
  char* to = host_address(output.data);
  if (to != from) copy_large(to, from, output.bytes);
}

void Collective::compute() {
  const KindFacts& kind = facts(call_.kind);
  if (call_.kind == Kind::barrier || (kind.to_root && call_.root != channel_.rank)) return;
  if (kind.reduces) return reduce_part(0, call_.outputs[0].bytes, host_address(call_.outputs[0].data));
  if (kind.from_root) {
    if (call_.kind != Kind::broadcast || call_.root != channel_.rank) copy_from(call_.root);
    return;
  }
  // Each rank begins with its own part, so that not all read from rank 0 at once.
  for (int i = 0; i < channel_.size; ++i) copy_from((channel_.rank + i) % channel_.size);
}

/// Bytes [begin, end) of what this rank gets, reduced over all ranks, to `out`.
void Collective::reduce_part(size_t begin, size_t end, char* out) {
  if (begin == end) return;
  std::vector<const void*> inputs;
  std::vector<double> factors;
  for (int peer = 0; peer < channel_.size; ++peer) {
    inputs.push_back(input_of(peer, call_.outputs[0].bytes) + begin);
    factors.push_back(channel_.slot(peer, index_).factor);
  }
  reduce(call_.dtype, call_.reduction, inputs.data(), factors.data(), channel_.size, out, (end - begin) / element_size(call_.dtype));
}

/// Where part `part` of a split allreduce begins: parts are whole cache lines.
size_t Collective::part_begin(int part) const {
  const size_t bytes = call_.outputs[0].bytes;
  const size_t lines = (bytes + 63) / 64;
  return std::min(bytes, lines * part / channel_.size * 64);
}

void Collective::fetch_reduced() {
  const Buffer& output = call_.outputs[0];
  for (int i = 1; i < channel_.size; ++i) {
    const int peer = (channel_.rank + i) % channel_.size;
    const size_t begin = part_begin(peer), end = part_begin(peer + 1);
    if (begin < end) copy_large(host_address(output.data) + begin, input_of(peer, output.bytes) + begin, end - begin);
  }
}

}  // namespace neuron::distributed

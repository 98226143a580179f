#include "csrc/distributed/process_group.h"

#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "csrc/aten/allocator.h"
#include "csrc/aten/guard.h"
#include "csrc/aten/interrupt.h"
#include "csrc/distributed/call.h"
#include "csrc/distributed/engine.h"
#include "csrc/distributed/hosted.h"
#include "csrc/distributed/message.h"
#include "csrc/program/explain.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace neuron::distributed {
namespace {

/// The core of the host behind a device of this process.
int core_of(int device) {
  const auto& visible = settings().visible_cores;
  return static_cast<size_t>(device) < visible.size() ? visible[device] : device;
}

/// A stream of the group's own, on which results are put where they belong and futures are completed.
Stream* end_stream(int device) {
  static auto* const mutex = new std::mutex;
  static auto* const streams = new std::map<int, Stream*>;
  std::lock_guard<std::mutex> lock(*mutex);
  Stream*& stream = (*streams)[device];
  if (!stream) {
    const auto* guard = c10::impl::getDeviceGuardImpl(c10::kPrivateUse1);
    stream = stream_of(guard->getStreamFromGlobalPool(c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)), true));
  }
  return stream;
}

}  // namespace

ProcessGroupNeuron::ProcessGroupNeuron(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options,
                                       MakeTransport transport, FirstUse first_use)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(c10::make_intrusive<NeuronOptions>(*options)),
      make_transport_(std::move(transport)),
      first_use_(std::move(first_use)) {
  check_fork();
  auto facts = ProcessFacts::of_this_process();
  facts.core = settings().visible_cores.size() == 1 ? settings().visible_cores[0] : -1;
  if (rank == 0) {
    block_ = Channel::make_block(size);
    facts.group_fd = block_.fd();
  }
  HostWaitScope wait;
  roster_ = agree_on_roster(*store_, rank, size, std::move(facts), options_->timeout);
}

ProcessGroupNeuron::~ProcessGroupNeuron() {
  if (!communicator_ || in_bad_fork()) return;
  if (!communicator_->idle()) abort();
  Engine::get().drive([&] { return communicator_->idle(); });
  communicator_->leave();
  Engine::get().remove(communicator_);
}

// ---- Connecting. ----

Communicator& ProcessGroupNeuron::communicator() {
  std::call_once(connected_, [this] { connect(); });
  if (auto failure = communicator_->failure()) std::rethrow_exception(failure);
  return *communicator_;
}

void ProcessGroupNeuron::connect() {
  const auto& all = roster_.ranks;
  const auto mine = all[rank_];
  const bool one_host = std::all_of(all.begin(), all.end(), [&](const auto& facts) { return facts.host == mine.host; });
  check_cores(all);
  std::unique_ptr<Channel> channel;
  if (one_host) {
    std::vector<std::shared_ptr<PeerProcess>> peers(size_);
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_) peers[rank] = PeerProcess::find(all[rank]);
    SharedBlock block = rank_ == 0 ? std::move(block_) : SharedBlock::open(all[0].pid, all[0].group_fd);
    channel = std::make_unique<Channel>(rank_, size_, std::move(block), std::move(peers), options_->global_ranks_in_group);
  } else {
    transport_ = make_transport_(c10::make_intrusive<c10d::PrefixStore>("gloo/" + roster_.number, store_), rank_, size_);
  }
  const std::string name = !getGroupDesc().empty() && getGroupDesc() != "undefined" ? getGroupDesc() : options_->group_name;
  auto made = std::make_shared<Communicator>(name.empty() ? "?" : name, rank_, size_, std::move(channel));
  first_use_(options_->group_name);
  Engine::get().add(made);
  communicator_ = std::move(made);
}

void ProcessGroupNeuron::check_cores(const std::vector<ProcessFacts>& all) const {
  const auto& mine = all[rank_];
  int local = 0;
  std::set<int> named;
  for (const auto& facts : all) {
    if (facts.host != mine.host) continue;
    ++local;
    TORCH_CHECK(facts.core < 0 || named.insert(facts.core).second, "Two ranks of this host have NEURON_RT_VISIBLE_CORES=", facts.core,
                ": each needs a NeuronCore of its own.");
  }
  TORCH_CHECK(!named.empty() || local <= device_count(), local, " ranks run on this host, but it has ", device_count(),
              " NeuronCore(s), and each rank needs one of its own. Start at most that many (torchrun --nproc-per-node), or choose a larger "
              "emulated "
              "instance with TORCH_NEURONX_EMULATED_INSTANCE (NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES limit it).");
}

bool ProcessGroupNeuron::on_one_host() { return communicator().channel() != nullptr; }

// ---- Submitting. ----

std::shared_ptr<Operation> ProcessGroupNeuron::operation_for(CollectiveCall call) {
  return std::make_shared<Collective>(*communicator_->channel(), std::move(call));
}

void ProcessGroupNeuron::prepare(Operation& operation, FlightRecord record, const Call& call, const std::vector<StreamPoint>& points) {
  const auto timeout = call.timeout == c10d::kUnsetTimeout ? options_->timeout : call.timeout;
  operation.points = points;
  operation.deadline = Clock::now() + timeout;
  operation.keep = std::make_shared<Tensors>(call.kept);
  record.group = communicator_->name;
  operation.record = record_flight(std::move(record));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::submit(Call call) {
  Stream* stream = current_stream(call.device);  // first: at exit, the engine must settle before the streams do
  communicator();
  interrupt("a collective");
  TORCH_CHECK(!stream->capture(), "A collective cannot be captured into a graph: call it outside of the capture");
  FlightRecord record;
  if (python_call_site) record.site = python_call_site();
  std::vector<StreamPoint> points;
  if (!stream->reached(stream->enqueued())) points.emplace_back(stream, stream->call([] { own_bell().ring(); }));
  Work::Parts parts{call.type, rank_, call.device, call.blocks_host, {}, call.outputs, {nullptr, 0}, end_stream(call.device)};
  {
    std::lock_guard<std::mutex> lock(submitting_);
    Engine& engine = Engine::get();
    const size_t last = call.message || !communicator_->channel() ? 0 : call.collectives.size() - 1;
    const auto add = [&](Lane& lane, const std::shared_ptr<Operation>& operation, uint64_t sequence) {
      if (parts.operations.empty()) operation->to_host = std::move(call.to_host);
      if (parts.operations.size() == last) operation->to_device = std::move(call.to_device);
      record.sequence = sequence;
      prepare(*operation, record, call, points);
      engine.submit(communicator_, lane, operation);
      parts.operations.push_back(operation);
    };
    if (call.message) {
      record.operation = c10d::opTypeToString(call.type);
      record.dtype = call.dtype_name;
      record.bytes = call.message->bytes;
      record.peer = call.peer;
      std::shared_ptr<Operation> operation;
      const auto dtype = static_cast<uint64_t>(call.dtype);
      const bool sends = call.type == c10d::OpType::SEND;
      if (!communicator_->channel())
        operation =
            std::make_shared<Hosted>([transfer = call.transfer, transport = transport_] { return transfer(*transport); }, nullptr, true);
      else if (sends)
        operation = std::make_shared<Send>(*communicator_->channel(), *call.message, dtype, call.peer, call.tag);
      else
        operation = std::make_shared<Receive>(*communicator_->channel(), *call.message, dtype, call.peer, call.tag);
      add(sends ? communicator_->sends(call.peer) : communicator_->receives(), operation, ++messages_);
    } else if (!communicator_->channel()) {
      record.operation = c10d::opTypeToString(call.type);
      add(communicator_->collectives(),
          std::make_shared<Hosted>([transfer = call.transfer, transport = transport_] { return transfer(*transport); }, call.after, false),
          collectives_++);
    } else {
      for (auto& one : call.collectives) {
        one.core = core_of(call.device);
        record.operation = describe(one);
        record.dtype = one.kind == Kind::barrier ? "" : call.dtype_name;
        record.bytes = 0;
        for (const auto& input : one.inputs) record.bytes += input.bytes;
        add(communicator_->collectives(), operation_for(std::move(one)), collectives_++);
      }
    }
  }
  if (parts.operations.empty()) return c10::make_intrusive<Work>(std::move(parts));
  Engine::get().begin(*parts.operations.back());
  for (auto [waited, sequence] : points)
    if (!waited->reached(sequence)) waited->query();  // nobody on this host may be going to wait, but the other ranks do
  if (!call.copy_back.empty()) parts.tail = put_back(call.dense, call.copy_back, *parts.end_stream, parts.operations);
  if (coalescing_) {
    coalesced_.insert(coalesced_.end(), parts.operations.begin(), parts.operations.end());
    coalesced_outputs_.insert(coalesced_outputs_.end(), call.outputs.begin(), call.outputs.end());
    coalesced_device_ = call.device;
    if (parts.tail.first) coalesced_tail_ = parts.tail;
  }
  return c10::make_intrusive<Work>(std::move(parts));
}

void ProcessGroupNeuron::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
  coalesced_outputs_.clear();
  coalesced_tail_ = {nullptr, 0};
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::endCoalescing() {
  coalescing_ = false;
  if (coalesced_.empty()) return nullptr;
  return c10::make_intrusive<Work>(Work::Parts{c10d::OpType::COALESCED, rank_, coalesced_device_, false, std::move(coalesced_),
                                               std::move(coalesced_outputs_), coalesced_tail_, end_stream(coalesced_device_)});
}

// ---- The group itself. ----

c10d::ErrorType ProcessGroupNeuron::getError() {
  return communicator_ && communicator_->failure() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupNeuron::split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                            const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  TORCH_CHECK(mine != ranks.end(), "split(): rank ", rank_, " is not one of the ranks of the new group");
  auto given = c10::make_intrusive<Options>(options ? *options : static_cast<const Options&>(*options_));
  if (given->global_ranks_in_group.size() != ranks.size()) {
    given->global_ranks_in_group.clear();
    for (int rank : ranks)
      given->global_ranks_in_group.push_back(options_->global_ranks_in_group.empty() ? rank : options_->global_ranks_in_group.at(rank));
  }
  std::string prefix = "split";
  for (int rank : ranks) prefix += "." + std::to_string(rank);
  return c10::make_intrusive<ProcessGroupNeuron>(c10::make_intrusive<c10d::PrefixStore>(prefix, store),
                                                 static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), given,
                                                 make_transport_, first_use_);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupNeuron::shrink(const std::vector<int64_t>& without, int flags,
                                                             const c10::intrusive_ptr<Options>& options) {
  constexpr int kAbort = 1;
  if (flags & kAbort) abort();
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank)
    if (std::find(without.begin(), without.end(), rank) == without.end()) ranks.push_back(rank);
  return split(store_, ranks, options);
}

void ProcessGroupNeuron::abort() {
  if (!communicator_) return;
  communicator_->abort("abort() was called");
  Engine::get().drive([&] { return communicator_->idle(); });
}

void ProcessGroupNeuron::shutdown() {
  if (!communicator_) return;
  HostWaitScope wait;
  const auto until = Clock::now() + options_->timeout;
  for (Stream* stream : open_streams(current_device())) stream->query();
  Engine::get().drive([&] { return communicator_->idle() || Clock::now() >= until; });
  communicator_->leave();
  communicator_->abort("it was destroyed");
}

}  // namespace neuron::distributed

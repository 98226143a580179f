#include "csrc/distributed/communicator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>

#include "csrc/distributed/engine.h"
#include "csrc/runtime/stream.h"

namespace neuron::distributed {
namespace {

std::exception_ptr backend_error(const std::string& text) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, text);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

Communicator::Communicator(std::string name, int rank, int size, std::unique_ptr<Channel> channel)
    : name(std::move(name)), rank(rank), size(size), channel_(std::move(channel)) {}

Lane& Communicator::lane(std::map<int, Lane>& lanes, int to) {
  std::lock_guard<std::mutex> lock(Engine::get().submitting());
  return lanes.try_emplace(to, false).first->second;
}

template <class F>
void Communicator::for_each_lane(F&& visit) {
  visit(collectives_);
  visit(receives_);
  std::vector<Lane*> found;
  {
    std::lock_guard<std::mutex> lock(Engine::get().submitting());
    for (auto& [to, lane] : sends_) found.push_back(&lane);
  }
  for (Lane* lane : found) visit(*lane);
}

std::exception_ptr Communicator::failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_ ? failure_ : abort_reason_;
}

void Communicator::abort(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (failure_ || abort_reason_) return;
    abort_reason_ = backend_error("The process group " + name + " was aborted on rank " + std::to_string(rank) + ": " + reason);
  }
  own_bell().ring();
}

void Communicator::leave() {
  // The engine's thread may not have got to an abort yet; the others are to be told of it all the same.
  if (channel_ && channel_->standing(rank) == Channel::taking_part) channel_->set_standing(failure() ? Channel::aborted : Channel::left);
}

bool Communicator::step(bool light, std::vector<std::shared_ptr<Operation>>* done) {
  next_arrival_ = Clock::time_point::max();
  std::exception_ptr reason;
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (!failure_)
      reason = abort_reason_;
    else if (!idle())
      reason = failure_;  // submitted before the caller could see the failure
  }
  if (reason) fail(reason, done);
  if (idle()) return false;
  bool moved = false;
  try {
    for_each_lane([&](Lane& lane) { moved |= step(lane, light, done); });
  } catch (...) {
    fail(std::current_exception(), done);
    return true;
  }
  return moved;
}

bool Communicator::step(Lane& lane, bool light, std::vector<std::shared_ptr<Operation>>* done) {
  bool moved = false;
  for (size_t at = 0; at < lane.waiting.size();) {
    const auto operation = lane.waiting[at];
    if (!operation->inputs_ready()) break;  // later ones must not overtake it
    const auto here = lane.waiting.begin() + static_cast<ptrdiff_t>(at);
    if (std::any_of(lane.waiting.begin(), here, [&](const auto& earlier) { return earlier->precedes(*operation); })) {
      ++at;
      continue;
    }
    if (operation->record->state == FlightRecord::State::scheduled) advance(*operation->record, FlightRecord::State::started);
    const auto progress = operation->step_staged(light);
    moved |= progress != Operation::Progress::none;
    if (progress == Operation::Progress::finished) {
      lane.waiting.erase(lane.waiting.begin() + static_cast<ptrdiff_t>(at));
      finish(operation, nullptr, done);
      continue;
    }
    if (operation->not_before > Clock::now()) next_arrival_ = std::min(next_arrival_, operation->not_before);
    if (lane.in_order) break;
    ++at;
  }
  return moved;
}

void Communicator::finish(const std::shared_ptr<Operation>& operation, std::exception_ptr error,
                          std::vector<std::shared_ptr<Operation>>* done) {
  advance(*operation->record, error ? FlightRecord::State::failed : FlightRecord::State::completed);
  {
    std::lock_guard<std::mutex> lock(Engine::get().submitting());
    operation->previous = nullptr;
    for (Lane* lane : {&collectives_, &receives_})
      if (lane->last == operation) lane->last = nullptr;
    for (auto& [to, lane] : sends_)
      if (lane.last == operation) lane.last = nullptr;
  }
  pending_.fetch_sub(1);
  done->push_back(operation);
  operation->finish(std::move(error));
}

void Communicator::fail(std::exception_ptr reason, std::vector<std::shared_ptr<Operation>>* done) {
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    first = !failure_;
    if (first) failure_ = reason;
    reason = failure_;
  }
  if (first && channel_) channel_->set_standing(Channel::aborted);
  for_each_lane([&](Lane& lane) {
    auto waiting = std::move(lane.waiting);
    lane.waiting.clear();
    for (auto& operation : waiting) {
      operation->give_up();
      finish(operation, reason, done);
    }
  });
}

std::string Communicator::late(const Operation& operation) const {
  for (const auto& [stream, sequence] : operation.points)
    if (!stream->reached(sequence))
      return "waits for work that was queued before it on this rank, on stream " + std::to_string(stream->id) +
             " of neuron:" + std::to_string(stream->device);
  return "waits for " + operation.awaited();
}

int Communicator::missing(const Operation& operation) const {
  int found = -1;
  for (int other = 0; other < size; ++other) {
    if (other == rank || !operation.needs_rank(other)) continue;
    const auto standing = channel_->standing(other);
    if (standing == Channel::taking_part) {
      if (!channel_->alive(other)) return other;
    } else if (found < 0 || (standing == Channel::left && channel_->standing(found) == Channel::aborted)) {
      found = other;
    }
  }
  return found;
}

void Communicator::check(std::vector<std::shared_ptr<Operation>>* done) {
  if (idle()) return;
  std::string problem;
  const auto now = Clock::now();
  for_each_lane([&](Lane& lane) {
    for (const auto& operation : lane.waiting) {
      if (!problem.empty()) return;
      const std::string what = operation->record->describe();
      if (channel_ && operation->inputs_ready()) {
        if (const int other = missing(*operation); other >= 0) {
          const auto standing = channel_->standing(other);
          problem = what + " of process group " + name + " cannot finish on rank " + std::to_string(rank) + ": " +
                    channel_->describe(other) +
                    (standing == Channel::aborted ? ", has aborted the group"
                     : standing == Channel::left  ? ", has left the group"
                                                  : ", has ended") +
                    ".";
        }
      }
      if (problem.empty() && now > operation->deadline)
        problem = what + " of process group " + name + " timed out on rank " + std::to_string(rank) + ": it " + late(*operation) +
                  ". torch_neuronx.distributed.flight_recorder() lists the last operations; init_process_group(timeout=...) sets the time.";
      if (lane.in_order) break;  // those behind wait for this one
    }
  });
  if (problem.empty()) return;
  std::fprintf(stderr, "[neuron] %s\n", problem.c_str());
  fail(backend_error(problem), done);
}

}  // namespace neuron::distributed

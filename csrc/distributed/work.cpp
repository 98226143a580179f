#include "csrc/distributed/work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "csrc/aten/guard.h"
#include "csrc/distributed/engine.h"
#include "csrc/distributed/hosted.h"
#include "csrc/distributed/message.h"
#include "csrc/runtime/settings.h"

namespace neuron::distributed {

Work::Work(Parts parts) : c10d::Work(parts.rank, parts.type), parts_(std::move(parts)) {}

bool Work::done() const {
  return std::all_of(parts_.operations.begin(), parts_.operations.end(), [](auto& operation) { return operation->done(); }) &&
         (!parts_.tail.first || parts_.tail.first->reached(parts_.tail.second));
}

bool Work::isCompleted() {
  if (awaited_.load(std::memory_order_acquire) || done()) return true;
  for (auto& operation : parts_.operations)
    for (auto [stream, sequence] : operation->points) stream->query();  // what it waits for may lie idle
  if (parts_.tail.first) parts_.tail.first->query();
  return done();
}

std::exception_ptr Work::exception() const {
  for (auto& operation : parts_.operations)
    if (auto error = operation->error()) return error;
  return nullptr;
}

bool Work::isSuccess() const { return done() && !exception(); }

int Work::sourceRank() const {
  TORCH_CHECK(parts_.operations.size() == 1, "sourceRank() is known of a receive only");
  wait_on_host(kNoTimeout);
  const auto* operation = parts_.operations[0].get();
  if (const auto* receive = dynamic_cast<const Receive*>(operation)) return receive->source();
  const auto* hosted = dynamic_cast<const Hosted*>(operation);
  TORCH_CHECK(hosted && hosted->source() >= 0, "sourceRank() is known of a receive only");
  return hosted->source();
}

void Work::order(Stream& stream) const {
  for (auto& operation : parts_.operations) await(stream, operation);
  if (parts_.tail.first) stream.wait_for(*parts_.tail.first, parts_.tail.second);
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (auto error = exception()) std::rethrow_exception(error);
  if (timeout != kNoTimeout || parts_.blocks_host || settings().launch_blocking) wait_on_host(timeout);
  order(*current_stream(parts_.device));
  awaited_.store(true, std::memory_order_release);
  return true;
}

void Work::wait_on_host(std::chrono::milliseconds timeout) const {
  const auto until = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  HostWaitScope wait;
  for (auto& operation : parts_.operations) {
    for (auto [stream, sequence] : operation->needs()) stream->drain(sequence);
    operation->help([&] { return Clock::now() >= until; });
    TORCH_CHECK_WITH(DistBackendError, operation->done(), "wait(): ", operation->record->describe(), " was not done within ",
                     timeout.count(), " ms: it waits for ", operation->awaited());
  }
  if (auto error = exception()) std::rethrow_exception(error);
  if (parts_.tail.first) parts_.tail.first->drain(parts_.tail.second);
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_) return future_;
  const c10::Device device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(parts_.device));
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
  if (auto error = exception()) {
    future_->setError(error);
    return future_;
  }
  order(*parts_.end_stream);
  c10::StreamGuard guard(to_c10(parts_.end_stream));
  future_->markCompleted(c10::IValue(parts_.outputs));
  return future_;
}

uint64_t Work::getSequencenumber() const { return parts_.operations.empty() ? 0 : parts_.operations.back()->record->sequence; }

float Work::getDuration() const {
  TORCH_CHECK(done() && !parts_.operations.empty(), "getDuration() is known once the work is done");
  const auto& record = *parts_.operations.back()->record;
  return std::chrono::duration<float, std::milli>(record.ended - record.started).count();
}

}  // namespace neuron::distributed

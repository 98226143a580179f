// What DDP measures of an iteration (its logging data: forward, backward and communication time) on the streams of a neuron device.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <map>
#include <optional>

#include "csrc/aten/guard.h"
#include "csrc/runtime/event.h"

namespace neuron::distributed {
namespace {

class ReducerTimer final : public c10d::Timer {
 public:
  explicit ReducerTimer(c10::Device device) : device_(device.index()) {}

  void record(Event event) override {
    Timer::record(event);
    events_.try_emplace(event, /*timing=*/true).first->second.record(*current_stream(device_));
  }

  /// Nanoseconds, for which the host waits; nothing when one has not been recorded, or they were reached in the other order.
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto first = events_.find(start), last = events_.find(end);
    if (first == events_.end() || last == events_.end()) return std::nullopt;
    first->second.synchronize();
    last->second.synchronize();
    const int64_t difference = last->second.time_ns() - first->second.time_ns();
    return difference < 0 ? std::nullopt : std::optional(difference);
  }

 private:
  const int device_;
  std::map<Event, neuron::Event> events_;
};

}  // namespace
}  // namespace neuron::distributed

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, neuron::distributed::ReducerTimer)
}  // namespace c10d

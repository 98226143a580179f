// The Trainium target: logical NeuronCores of this host, through libnrt.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"
#include "csrc/runtime/trainium/memory.h"
#include "csrc/runtime/trainium/nrt_async.h"

namespace neuron::trainium {

class TrainiumTarget final : public Target {
 public:
  /// Initialises the runtime, which takes the visible cores until the process ends. Throws c10::Error with the runtime's status.
  TrainiumTarget();

  int device_count() const noexcept override { return static_cast<int>(cores_.size()); }
  const DeviceInfo& device_info(int index) const override { return core(index).info; }
  TrainiumMemory& memory(int device) override { return *core(device).memory; }
  Stream* new_stream(int device, int64_t id, int priority) override;

  AsyncCore& queues(int device) const { return *core(device).queues; }

 private:
  struct Core {
    DeviceInfo info;
    std::unique_ptr<AsyncCore> queues;
    std::unique_ptr<TrainiumMemory> memory;
  };
  const Core& core(int index) const;

  std::vector<Core> cores_;
};

/// Called at exit, after the streams have ended and before the runtime is closed.
void before_close(void (*fn)());

/// Whether the runtime's library and a driver's device are there. Opens no device.
bool is_present();

/// Logical cores that this process would get; 0 when that cannot be told. Opens no device, throws nothing.
int visible_cores() noexcept;

/// Throws c10::Error when there is no library or the runtime refuses to start, with the remedy.
std::unique_ptr<Target> open_target();

/// The target in use. Only when it is this one.
TrainiumTarget& opened_target();

}  // namespace neuron::trainium

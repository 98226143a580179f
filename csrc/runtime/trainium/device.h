// The Trainium target: logical NeuronCores of this host, through libnrt.
//
// Note [One core for each rank]
// The runtime gives a core to one process at a time, and would give all of them to the first rank that starts. Where a launcher has started
// several ranks on the host (LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them) and nothing has chosen cores (NEURON_RT_VISIBLE_CORES,
// NEURON_RT_NUM_CORES), a process takes the core of its rank alone. It goes on counting all of them, so that neuron:<LOCAL_RANK> means the
// same core as on the emulated target; the others are other processes'. The runtime numbers the cores that a process has taken from 0 on
// (vnc).
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
  /// Initialises the runtime, which takes cores until the process ends: see Note [One core for each rank]. Throws c10::Error with the
  /// runtime's status.
  TrainiumTarget();

  int device_count() const noexcept override { return static_cast<int>(cores_.size()); }
  const DeviceInfo& device_info(int index) const override { return core(index).info; }
  TrainiumMemory& memory(int device) override { return *core(device).memory; }
  Stream* new_stream(int device, int64_t id, int priority) override;

  AsyncCore& queues(int device) const { return *core(device).queues; }

  /// The runtime's number of a device. Throws c10::Error when it is another process's core.
  int vnc(int device) const;

 private:
  struct Core {
    DeviceInfo info;
    int vnc = -1;                       ///< -1: another process's
    std::shared_ptr<AsyncCore> queues;  ///< of a core of this process
    std::unique_ptr<TrainiumMemory> memory;
  };
  const Core& core(int index) const;
  void open_cores(int own, int total);

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

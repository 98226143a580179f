#include "csrc/runtime/emulated/device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>

#include "csrc/runtime/emulated/instance.h"
#include "csrc/runtime/emulated/stream.h"

namespace neuron::emulated {

EmulatedTarget::EmulatedTarget(std::vector<DeviceInfo> devices, bool guard, HostLimits limits) : devices_(std::move(devices)) {
  int64_t largest = 0;
  for (const auto& info : devices_) largest = std::max(largest, info.memory_bytes);
  auto space = std::make_shared<AddressSpace>(device_count(), largest, guard);
  auto host = std::make_shared<HostBudget>(limits);
  for (int i = 0; i < device_count(); ++i) memories_.push_back(std::make_unique<EmulatedMemory>(space, host, i, devices_[i].memory_bytes));
}

void EmulatedTarget::check(int index) const {
  TORCH_CHECK_INDEX(index >= 0 && index < device_count(), "There is no device neuron:", index, ": accepted indices are 0 to ",
                    device_count() - 1, " (NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES choose the cores that a process may use).");
}

const DeviceInfo& EmulatedTarget::device_info(int index) const {
  check(index);
  return devices_[index];
}

Memory& EmulatedTarget::memory(int device) {
  check(device);
  return *memories_[device];
}

Stream* EmulatedTarget::new_stream(int device, int64_t id, int priority) {
  check(device);
  return make_emulated_stream(device, id, priority);
}

std::unique_ptr<Target> open_target(const Settings& settings) {
  std::string problem;
  auto devices = devices_of(settings, &problem);
  TORCH_CHECK(problem.empty(), problem);
  const HostLimits limits{settings.host_memory_limit, settings.host_memory_reserve};
  try {
    return std::make_unique<EmulatedTarget>(std::move(devices), settings.guard, limits);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK(
        false,
        "The emulated NeuronCores need address space (not memory) of twice their HBM or more, and the system refused it. Raise the limit "
        "on virtual memory (ulimit -v unlimited), or use fewer cores with NEURON_RT_NUM_CORES.");
  }
}

}  // namespace neuron::emulated

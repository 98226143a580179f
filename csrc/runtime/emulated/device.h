// The emulated target: NeuronCores that live in host memory.
#pragma once

#include <memory>
#include <vector>

#include "csrc/runtime/emulated/memory.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace neuron::emulated {

class EmulatedTarget final : public Target {
 public:
  explicit EmulatedTarget(std::vector<DeviceInfo> devices, bool guard, HostLimits limits);

  int device_count() const noexcept override { return static_cast<int>(devices_.size()); }
  const DeviceInfo& device_info(int index) const override;
  Memory& memory(int device) override;
  Stream* new_stream(int device, int64_t id, int priority) override;

 private:
  void check(int index) const;

  std::vector<DeviceInfo> devices_;
  std::vector<std::unique_ptr<EmulatedMemory>> memories_;
};

/// Opens the devices that `settings` select. Throws c10::Error.
std::unique_ptr<Target> open_target(const Settings& settings);

}  // namespace neuron::emulated

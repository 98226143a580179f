// PyTorch's questions about the device that are neither about streams nor about memory.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace neuron {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  /// True when there is at least one device. Throws and opens nothing.
  bool isAvailable() const override;
  bool hasPrimaryContext(c10::DeviceIndex device) const override;
  /// Opens the device; throws with the cause and the remedy when that is impossible.
  void init() const override;

  c10::DeviceIndex deviceCount() const override;
  void setCurrentDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex getCurrentDevice() const override;
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override;
  /// As exchangeDevice(), but leaves the device as it is for a negative index.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override;

  c10::Device getDeviceFromPtr(void* data) const override;
  bool isPinnedPtr(const void* data) const override;
  c10::Allocator* getPinnedMemoryAllocator() const override;

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override;
  at::Generator getNewGenerator(c10::DeviceIndex device) const override;

  /// Gives `storage` room for `bytes` and keeps what it holds, in the order of the current stream of its device.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override;
};

}  // namespace neuron

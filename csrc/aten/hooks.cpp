#include "csrc/aten/hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

#include "csrc/aten/allocator.h"
#include "csrc/aten/generator.h"
#include "csrc/aten/guard.h"
#include "csrc/aten/host_allocator.h"
#include "csrc/aten/interrupt.h"
#include "csrc/runtime/target.h"

namespace neuron {

bool Hooks::isAvailable() const { return visible_devices() > 0; }

bool Hooks::hasPrimaryContext(c10::DeviceIndex device) const {
  check_device(device);
  return target_is_open() && !in_bad_fork();
}

void Hooks::init() const {
  check_fork();
  target();
}

c10::DeviceIndex Hooks::deviceCount() const { return visible_devices(); }

void Hooks::setCurrentDevice(c10::DeviceIndex device) const { exchange_device(device); }

c10::DeviceIndex Hooks::getCurrentDevice() const { return static_cast<c10::DeviceIndex>(current_device()); }

c10::DeviceIndex Hooks::exchangeDevice(c10::DeviceIndex device) const { return static_cast<c10::DeviceIndex>(exchange_device(device)); }

c10::DeviceIndex Hooks::maybeExchangeDevice(c10::DeviceIndex device) const {
  return device < 0 ? getCurrentDevice() : exchangeDevice(device);
}

c10::Device Hooks::getDeviceFromPtr(void* data) const {
  const int device = NeuronAllocator::device_of(data);
  TORCH_CHECK(device >= 0, "The pointer ", data, " does not point to neuron device memory.");
  return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
}

bool Hooks::isPinnedPtr(const void* data) const { return is_pinned(data); }

c10::Allocator* Hooks::getPinnedMemoryAllocator() const { return at::getHostAllocator(c10::kPrivateUse1); }

const at::Generator& Hooks::getDefaultGenerator(c10::DeviceIndex device) const {
  return default_generator(device < 0 ? current_device() : device);
}

at::Generator Hooks::getNewGenerator(c10::DeviceIndex device) const {
  const int index = device < 0 ? current_device() : device;
  check_device(index);
  return at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(index));
}

void Hooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  if (impl->nbytes() > 0) interrupt("a tensor that is resized");
  const c10::DeviceGuard on_device(impl->device());  // allocators give memory of the current device
  auto* allocator = c10::getDeviceAllocator(c10::kPrivateUse1);
  c10::DataPtr fresh = allocator->allocate(bytes);
  if (const size_t kept = std::min(impl->nbytes(), bytes)) {
    Stream* stream = current_stream(impl->device().index());
    void* to = fresh.get();
    void* from = impl->mutable_data();
    auto& memory = target().memory(impl->device().index());
    stream->call([=, &memory] { memory.copy(to, from, kept); });
    // The old block goes back to the stream that it was allocated on, which may be another one.
    allocator->recordStream(impl->data_ptr(), to_c10(stream));
  }
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

namespace {

// Leaked: PyTorch asks while the process exits.
[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

}  // namespace neuron

// Workspaces in PyTorch's terms.
#include "csrc/runtime/emulated/workspace.h"

#include "csrc/aten/allocator.h"
#include "csrc/runtime/target.h"

namespace neuron {
namespace {

// Whoever runs short on the device asks the other holder of its memory to give back what it does not need.
[[maybe_unused]] const bool installed = [] {
  NeuronAllocator::on_pressure = [](int device) { workspace(device).trim(); };
  return true;
}();

}  // namespace

c10::DataPtr workspace_allocate(int device, size_t bytes) {
  void* data = nullptr;
  try {
    data = workspace(device).get(bytes);
  } catch (const OutOfMemory&) {
    // This runs on a stream, which must not wait for itself: only what no stream can be using is taken from the cache.
    NeuronAllocator& allocator = NeuronAllocator::get();
    for (int other = 0; other < target().device_count(); ++other)
      if (DeviceCache* cache = allocator.cache_if_open(other)) cache->release_unused();
    try {
      data = workspace(device).get(bytes);
    } catch (const OutOfMemory& full) {
      NeuronAllocator::raise_out_of_memory(allocator.cache(device), bytes, full);
    }
  }
  return {data, data, &Workspace::put, c10::Device(c10::kCPU)};
}

}  // namespace neuron

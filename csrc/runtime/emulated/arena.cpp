#include "csrc/runtime/emulated/arena.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "csrc/aten/allocator.h"
#include "csrc/runtime/emulated/workspace.h"
#include "csrc/runtime/memory.h"

namespace neuron {
namespace {

thread_local ReplayArena* replay_arena = nullptr;
thread_local TraceArena* trace_arena = nullptr;
c10::Allocator* host_allocator = nullptr;

// Temporaries up to this size are not worth a device block: the heap serves them as fast.
constexpr size_t kHeapBytes = 1024;

/// Blocks that traced kernels hold, by address. Allocator::raw_allocate() wants DataPtrs whose context is their address, and
/// raw_deallocate() tells no more than that.
class TracedBlocks {
 public:
  void add(void* data, Block* block) {
    std::lock_guard lock(mutex_);
    blocks_[data] = block;
    count_.store(blocks_.size(), std::memory_order_release);
  }
  Block* take(void* data) {
    if (count_.load(std::memory_order_acquire) == 0) return nullptr;
    std::lock_guard lock(mutex_);
    auto found = blocks_.find(data);
    if (found == blocks_.end()) return nullptr;
    Block* block = found->second;
    blocks_.erase(found);
    count_.store(blocks_.size(), std::memory_order_release);
    return block;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, Block*> blocks_;
  std::atomic<size_t> count_{0};
};

TracedBlocks& traced_blocks() {
  static auto* all = new TracedBlocks;
  return *all;
}

void leave(void*) {}  // a fresh storage belongs to the tensor that the host has made already

void free_traced(void* data) {
  if (Block* block = traced_blocks().take(data)) NeuronAllocator::free_block(block);
}

/// Frees whatever allocate() has handed out, on any thread, within a kernel or later.
void free_any(void* data) {
  if (data == nullptr) return;
  if (Block* block = traced_blocks().take(data)) return NeuronAllocator::free_block(block);
  if (NeuronAllocator::device_of(device_address(data)) < 0) return host_allocator->raw_deleter()(data);
  if (replay_arena == nullptr || !replay_arena->is_planned(data)) Workspace::put(data);
}

class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (replay_arena != nullptr && bytes > 0) return replay_arena->allocate(bytes);
    if (trace_arena != nullptr && bytes > 0) return trace_arena->allocate(bytes);
    return host_allocator->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { host_allocator->copy_data(dest, src, count); }
};

}  // namespace

ReplayArena::ReplayArena(const std::vector<FreshStorage>& plan, const uint64_t* words, int device)
    : plan_(plan), words_(words), device_(device) {
  replay_arena = this;
}

ReplayArena::~ReplayArena() { replay_arena = nullptr; }

c10::DataPtr ReplayArena::allocate(size_t bytes) {
  const int index = next_++;
  for (size_t k = 0; k < plan_.size(); ++k) {
    if (plan_[k].allocation != index) continue;
    if (plan_[k].bytes != bytes) break;
    auto* data = host_address(reinterpret_cast<void*>(words_[k]));
    return {data, data, &leave, c10::Device(c10::DeviceType::CPU)};
  }
  if (bytes <= kHeapBytes) return host_allocator->allocate(bytes);
  return workspace_allocate(device_, bytes);
}

bool ReplayArena::is_planned(const void* data) const {
  for (size_t k = 0; k < plan_.size(); ++k) {
    if (host_address(reinterpret_cast<void*>(words_[k])) == data) return true;
  }
  return false;
}

TraceArena::TraceArena(Stream& stream) : stream_(stream) { trace_arena = this; }
TraceArena::~TraceArena() { trace_arena = nullptr; }

c10::DataPtr TraceArena::allocate(size_t bytes) {
  auto& allocator = NeuronAllocator::get();
  auto* block = allocator.allocate_block(stream_.device, &stream_, bytes);
  auto* data = host_address(NeuronAllocator::data(block));
  traced_blocks().add(data, block);
  order_.push_back(data);
  return {data, data, &free_traced, c10::Device(c10::DeviceType::CPU)};
}

Block* TraceArena::take(void* data) { return traced_blocks().take(data); }

int TraceArena::index_of(const void* data) const {
  for (int i = static_cast<int>(order_.size()) - 1; i >= 0; --i) {
    if (order_[i] == data) return i;
  }
  return -1;
}

void install_arena() {
  static std::once_flag once;
  std::call_once(once, [] {
    host_allocator = c10::GetCPUAllocator();
    // The highest priority: nothing may replace the wrapper while device tensors can be made.
    c10::SetCPUAllocator(new ArenaAllocator, /*priority=*/255);
  });
}

}  // namespace neuron

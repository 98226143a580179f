#include "csrc/runtime/trainium/memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "csrc/runtime/target.h"

namespace neuron::trainium {
namespace {

size_t whole_pages(size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// Waits for a transfer that may have been refused because the queue was full.
template <class Schedule>
void transfer(const char* attempted, Schedule&& schedule) {
  std::unique_ptr<Request> request;
  NRT_STATUS status = schedule(&request);
  while (status == NRT_QUEUE_FULL) {
    usleep(50);
    status = schedule(&request);
  }
  check(status, attempted);
  check(request->wait(), attempted);
}

}  // namespace

void* TrainiumMemory::allocate(size_t bytes) {
  TORCH_CHECK(vnc_ >= 0, "Memory of a NeuronCore that another process has cannot be allocated here.");
  bytes = whole_pages(bytes);
  auto out_of = [&](const char* what, const char* detail) {
    int64_t free = 0, total = 0;
    info(&free, &total);
    return OutOfMemory{what, static_cast<int64_t>(bytes), free, total, detail};
  };
  nrt_tensor_t* tensor = nullptr;
  const NRT_STATUS status = nrt().nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, vnc_, bytes, nullptr, &tensor);
  if (status == NRT_RESOURCE) {
    throw out_of("device", "NRT_RESOURCE(4) from the Neuron runtime; programs loaded on the core and their scratchpad need HBM too");
  }
  check(status, "allocating device memory");
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    nrt().nrt_tensor_free(&tensor);
    throw out_of("host",
                 "the system refused address space (not memory) for the segment: raise the limit on virtual memory, ulimit -v unlimited");
  }
  std::lock_guard lock(mutex_);
  segments_.emplace(static_cast<char*>(address), Segment{bytes, tensor});
  allocated_ += static_cast<int64_t>(bytes);
  return address;
}

void TrainiumMemory::release(void* segment, size_t) noexcept {
  Segment gone{};
  {
    std::lock_guard lock(mutex_);
    auto found = segments_.find(static_cast<char*>(segment));
    if (found == segments_.end()) return;
    gone = found->second;
    segments_.erase(found);
    allocated_ -= static_cast<int64_t>(gone.bytes);
  }
  nrt().nrt_tensor_free(&gone.tensor);
  munmap(segment, gone.bytes);
}

void TrainiumMemory::info(int64_t* free, int64_t* total) {
  *total = total_;
  if (const auto stats = memory_stats(vnc_)) {
    *free = static_cast<int64_t>(stats->bytes_limit - std::min(stats->bytes_used, stats->bytes_limit));
    return;
  }
  std::lock_guard lock(mutex_);
  *free = total_ - allocated_;
}

Location TrainiumMemory::locate(const void* address) const {
  std::lock_guard lock(mutex_);
  auto after = segments_.upper_bound(static_cast<const char*>(address));
  if (after == segments_.begin()) return {};
  const auto& [start, segment] = *std::prev(after);
  const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - start);
  if (offset >= segment.bytes) return {};
  return {segment.tensor, offset};
}

Location TrainiumMemory::must_locate(const void* address, const char* what) const {
  const Location found = locate(address);
  TORCH_CHECK(found.tensor != nullptr, what, ": the address ", address, " is not memory of NeuronCore ", vnc_,
              ". The storage has been freed, or belongs to another device.");
  return found;
}

nrt_tensor_t* TrainiumMemory::slice(const void* address, size_t bytes) const {
  const Location at = must_locate(address, "naming a tensor to the runtime");
  nrt_tensor_t* slice = nullptr;
  check(nrt().nrt_tensor_allocate_slice(at.tensor, at.offset, bytes, nullptr, &slice), "naming a part of device memory");
  return slice;
}

void TrainiumMemory::write(void* to, const void* host, size_t bytes) {
  if (bytes == 0) return;
  const Location at = must_locate(to, "copying to the device");
  transfer("copying to the device", [&](auto* request) { return queues_.write(at.tensor, host, at.offset, bytes, request); });
}

void TrainiumMemory::read(void* host, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const Location at = must_locate(from, "copying to the host");
  transfer("copying to the host", [&](auto* request) { return queues_.read(host, at.tensor, at.offset, bytes, request); });
}

void TrainiumMemory::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const Location at = must_locate(to, "copying on the device");
  if (const Location source = locate(from); source.tensor) {
    return check(nrt().nrt_tensor_copy(source.tensor, source.offset, at.tensor, at.offset, bytes), "copying on the device");
  }
  // The runtime copies within one core only: across cores by way of the host.
  for (int device = 0; device < target().device_count(); ++device) {
    auto& other = target().memory(device);
    if (!other.contains(from)) continue;
    constexpr size_t piece = size_t{16} << 20;
    std::vector<char> staged(std::min(bytes, piece));
    for (size_t done = 0; done < bytes; done += piece) {
      const size_t now = std::min(piece, bytes - done);
      other.read(staged.data(), static_cast<const char*>(from) + done, now);
      write(static_cast<char*>(to) + done, staged.data(), now);
    }
    return;
  }
  TORCH_CHECK(false, "copying between devices: the address ", from, " is memory of no NeuronCore of this process.");
}

void TrainiumMemory::clear(void* to, size_t bytes) {
  if (bytes == 0) return;
  const Location at = must_locate(to, "clearing device memory");
  check(nrt().nrt_tensor_memset(at.tensor, at.offset, 0, bytes), "clearing device memory");
}

}  // namespace neuron::trainium

#include "csrc/runtime/emulated/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "csrc/runtime/emulated/host_memory.h"
#include "csrc/runtime/large_copy.h"

namespace neuron {

intptr_t guard_offset = 0;
std::atomic<uint64_t> segments_released{0};

namespace emulated {
namespace {

constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr int64_t kMiB = int64_t{1} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string mib(int64_t bytes) { return std::to_string(bytes / kMiB) + " MiB"; }

}  // namespace

AddressSpace::AddressSpace(int devices, int64_t device_bytes, bool guard) {
  // Addresses are taken in whole granules and get fragmented, so a window is larger than the memory behind it.
  for (size_t factor : {4, 2}) {
    window_bytes_ = round_up(static_cast<size_t>(device_bytes) * factor, granule);
    const size_t all = window_bytes_ * devices;
    mapped_bytes_ = all * (guard ? 2 : 1) + granule;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_NONE, kReserve, -1, 0);
    if (mapped == MAP_FAILED) continue;
    base_ = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(mapped), granule));
    // What alignment cuts off at the front stays mapped and inaccessible; the destructor does not know it, a granule of addresses at most.
    mapped_bytes_ -= base_ - static_cast<char*>(mapped);
    guard_offset = guard ? static_cast<intptr_t>(all) : 0;
    return;
  }
  throw std::bad_alloc();
}

AddressSpace::~AddressSpace() { munmap(base_, mapped_bytes_); }

// ---- HostBudget ---------------------------------------------------------------------------------------------------------

void HostBudget::add(int fd, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Space now = space();
  if (bytes > now.free) throw OutOfMemory{"host", bytes, std::max<int64_t>(now.free, 0), now.total, now.detail};
  fresh_[fd] = bytes;
  committed_ += bytes;
}

void HostBudget::remove(int fd, int64_t bytes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  fresh_.erase(fd);
  committed_ -= bytes;
}

int64_t HostBudget::free() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::max<int64_t>(space().free, 0);
}

int64_t HostBudget::untouched() {
  int64_t sum = 0;
  for (auto it = fresh_.begin(); it != fresh_.end();) {
    struct stat facts{};
    const int64_t touched = fstat(it->first, &facts) == 0 ? facts.st_blocks * int64_t{512} : 0;
    if (touched >= it->second) {
      it = fresh_.erase(it);  // pages are never given back singly: no need to look again
    } else {
      sum += it->second - touched;
      ++it;
    }
  }
  return sum;
}

HostBudget::Space HostBudget::space() {
  const HostMemory machine = read_host_memory();
  const int64_t reserve = limits_.reserve ? limits_.reserve : std::clamp(machine.total / 20, 64 * kMiB, 2048 * kMiB);
  Space result{machine.available - reserve - untouched(), machine.total,
               std::string(machine.limited_by) + " allows " + mib(machine.total) + ", of which " + mib(machine.available) +
                   " are available and " + mib(reserve) + " are kept for the rest of the system (TORCH_NEURONX_HOST_MEMORY_RESERVE)"};
  if (limits_.limit && limits_.limit - committed_ < result.free) {
    result = {limits_.limit - committed_, limits_.limit,
              "TORCH_NEURONX_HOST_MEMORY_LIMIT allows the devices of this process " + mib(limits_.limit)};
  }
  return result;
}

// ---- EmulatedMemory -----------------------------------------------------------------------------------------------------

EmulatedMemory::EmulatedMemory(std::shared_ptr<AddressSpace> space, std::shared_ptr<HostBudget> host, int device, int64_t total)
    : space_(std::move(space)),
      host_(std::move(host)),
      total_(total),
      begin_(space_->window(device)),
      end_(begin_ + space_->window_bytes()),
      used_(new std::atomic<uint32_t>[space_->window_bytes() / AddressSpace::granule]()) {
  holes_[begin_] = space_->window_bytes();
}

EmulatedMemory::~EmulatedMemory() {
  while (!segments_.empty()) {
    const auto& [address, segment] = *segments_.begin();
    release(const_cast<char*>(address), segment.bytes);
  }
}

void* EmulatedMemory::allocate(size_t requested) {
  const size_t bytes = round_up(std::max<size_t>(requested, 1), static_cast<size_t>(getpagesize()));
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t size = static_cast<int64_t>(bytes);
  if (bytes < requested || size < 0 || size > total_ - allocated_) {
    throw OutOfMemory{"device", static_cast<int64_t>(requested), total_ - allocated_, total_, "the memory of the NeuronCore is full"};
  }
  const int fd = memfd_create("neuron-segment", MFD_CLOEXEC);
  if (fd < 0) throw OutOfMemory{"host", size, 0, 0, std::string("no file for the segment: ") + std::strerror(errno)};
  char* address = nullptr;
  bool counted = false;
  try {
    host_->add(fd, size);
    counted = true;
    address = take_addresses(bytes);
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0)
      throw OutOfMemory{"host", size, 0, 0, std::string("the kernel refused to size a segment: ") + std::strerror(errno)};
    map(address, bytes, fd, 0);
  } catch (...) {
    if (address) give_addresses(address, bytes);
    if (counted) host_->remove(fd, size);
    close(fd);
    throw;
  }
  segments_[address] = {bytes, fd};
  allocated_ += size;
  set_used(address, bytes, true);
  return address;
}

void* EmulatedMemory::adopt(int theirs, size_t offset, size_t requested) {
  const size_t bytes = round_up(std::max<size_t>(requested, 1), static_cast<size_t>(getpagesize()));
  struct stat facts{};
  if (fstat(theirs, &facts) != 0 || static_cast<size_t>(facts.st_size) < offset + bytes)
    throw OutOfMemory{"host", static_cast<int64_t>(bytes), 0, 0, "the file of the other process does not reach that far"};
  std::lock_guard<std::mutex> lock(mutex_);
  char* const address = take_addresses(bytes);
  try {
    map(address, bytes, theirs, offset);
  } catch (...) {
    give_addresses(address, bytes);
    throw;
  }
  segments_[address] = {bytes, -1};  // the mapping keeps the file
  set_used(address, bytes, true);
  return address;
}

void EmulatedMemory::set_used(char* address, size_t bytes, bool used) {
  for (size_t at = 0; at < bytes; at += AddressSpace::granule) {
    const auto part = static_cast<uint32_t>(std::min(bytes - at, AddressSpace::granule));
    used_[(address + at - begin_) / AddressSpace::granule].store(used ? part : 0, std::memory_order_release);
  }
}

void EmulatedMemory::map(char* address, size_t bytes, int fd, size_t offset) {
  char* const host = host_address(address);
  if (mmap(host, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, static_cast<off_t>(offset)) == MAP_FAILED) {
    throw OutOfMemory{"host", static_cast<int64_t>(bytes), 0, 0,
                      std::string("the kernel refused to map a segment: ") + std::strerror(errno)};
  }
  madvise(host, bytes, MADV_HUGEPAGE);  // an old kernel may refuse it; nothing depends on it
}

void EmulatedMemory::release(void* segment, size_t bytes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  char* const address = static_cast<char*>(segment);
  const auto found = segments_.find(address);
  if (found == segments_.end()) return;
  bytes = found->second.bytes;
  const int fd = found->second.fd;
  set_used(address, bytes, false);
  // Replaces the mapping at one stroke, so that no other thread's mmap can land in the gap.
  mmap(host_address(address), bytes, PROT_NONE, kReserve | MAP_FIXED, -1, 0);
  if (fd >= 0) {
    host_->remove(fd, static_cast<int64_t>(bytes));
    allocated_ -= static_cast<int64_t>(bytes);
    segments_released.fetch_add(1, std::memory_order_seq_cst);
    close(fd);
  }
  segments_.erase(found);
  give_addresses(address, bytes);
}

void EmulatedMemory::info(int64_t* free, int64_t* total) {
  const int64_t host = host_->free();
  std::lock_guard<std::mutex> lock(mutex_);
  *free = std::min(total_ - allocated_, host);
  *total = total_;
}

bool EmulatedMemory::contains(const void* address) const {
  const char* const at = static_cast<const char*>(address);
  if (at < begin_ || at >= end_) return false;
  const size_t offset = at - begin_;
  return offset % AddressSpace::granule < used_[offset / AddressSpace::granule].load(std::memory_order_acquire);
}

int EmulatedMemory::segment_fd(const void* address, size_t* offset) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find(address);
  if (found == segments_.end()) return -1;
  *offset = static_cast<const char*>(address) - found->first;
  return found->second.fd;
}

void EmulatedMemory::write(void* to, const void* host, size_t bytes) { copy_large(host_address(to), host, bytes); }

void EmulatedMemory::read(void* host, const void* from, size_t bytes) { copy_large(host, host_address(from), bytes); }

void EmulatedMemory::copy(void* to, const void* from, size_t bytes) { copy_large(host_address(to), host_address(from), bytes); }

void EmulatedMemory::clear(void* to, size_t bytes) { std::memset(host_address(to), 0, bytes); }

SharedRange EmulatedMemory::share(const void* address) const {
  SharedRange range;
  range.fd = segment_fd(address, &range.offset);
  range.adopted = range.fd < 0 && contains(address);
  return range;
}

EmulatedMemory::Segments::const_iterator EmulatedMemory::find(const void* address) const {
  const char* const at = static_cast<const char*>(address);
  auto it = segments_.upper_bound(at);
  if (it == segments_.begin()) return segments_.end();
  --it;
  return at < it->first + it->second.bytes ? it : segments_.end();
}

char* EmulatedMemory::take_addresses(size_t bytes) {
  const size_t span = round_up(bytes, AddressSpace::granule);
  for (auto it = holes_.begin(); it != holes_.end(); ++it) {
    auto [address, room] = *it;
    if (room < span) continue;
    holes_.erase(it);
    if (room > span) holes_[address + span] = room - span;
    return address;
  }
  throw OutOfMemory{"device", static_cast<int64_t>(bytes), total_ - allocated_, total_,
                    "the address window of the NeuronCore is fragmented"};
}

void EmulatedMemory::give_addresses(char* address, size_t bytes) {
  size_t span = round_up(bytes, AddressSpace::granule);
  auto next = holes_.lower_bound(address);
  if (next != holes_.end() && address + span == next->first) {
    span += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      previous->second += span;
      return;
    }
  }
  holes_[address] = span;
}

}  // namespace emulated
}  // namespace neuron

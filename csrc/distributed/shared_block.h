// Memory that the processes of one host share: a nameless file, and a bell in it that wakes a process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace neuron::distributed {

/// A mapped memfd. The kernel frees it when the last process that maps it is gone.
class SharedBlock {
 public:
  SharedBlock() = default;
  ~SharedBlock();
  SharedBlock(SharedBlock&& other) noexcept { *this = static_cast<SharedBlock&&>(other); }
  SharedBlock& operator=(SharedBlock&& other) noexcept;

  /// A new block of zeros. Throws c10::Error.
  static SharedBlock create(const char* name, size_t bytes);

  /// Descriptor `fd` of process `pid`, whole. Throws c10::Error, naming the process, when it is gone or does not let us.
  static SharedBlock open(pid_t pid, int fd);

  explicit operator bool() const { return data_ != nullptr; }
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  ///< -1 when opened: the mapping keeps the file

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

/// Wakes the threads of one process that sleep on it; lies in shared memory. A sleeper reads value(), looks whether there is anything to
/// do, and sleeps with that value: a ring in between is not missed.
class Doorbell {
 public:
  uint32_t value() const { return rings_.load(std::memory_order_seq_cst); }
  void ring();
  void sleep(uint32_t seen, std::chrono::nanoseconds longest);

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace neuron::distributed

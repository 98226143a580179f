#include "csrc/distributed/shared_block.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>

namespace neuron::distributed {
namespace {

char* map(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

}  // namespace

SharedBlock::~SharedBlock() {
  if (data_) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

SharedBlock& SharedBlock::operator=(SharedBlock&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedBlock SharedBlock::create(const char* name, size_t bytes) {
  SharedBlock block;
  block.fd_ = memfd_create(name, MFD_CLOEXEC);
  TORCH_CHECK(block.fd_ >= 0 && ftruncate(block.fd_, static_cast<off_t>(bytes)) == 0, "No shared memory of ", bytes,
              " bytes for the process group: ", std::strerror(errno));
  block.data_ = map(block.fd_, bytes);
  TORCH_CHECK(block.data_, "Cannot map shared memory of ", bytes, " bytes for the process group: ", std::strerror(errno));
  block.bytes_ = bytes;
  return block;
}

SharedBlock SharedBlock::open(pid_t pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  TORCH_CHECK_WITH(DistBackendError, opened >= 0, "Cannot open memory of process ", pid, " of this process group (", path,
                   "): ", std::strerror(errno), ". It has ended, or runs as another user.");
  SharedBlock block;
  struct stat facts{};
  if (fstat(opened, &facts) == 0 && facts.st_size > 0) block.data_ = map(opened, block.bytes_ = static_cast<size_t>(facts.st_size));
  const int error = errno;
  close(opened);
  TORCH_CHECK_WITH(DistBackendError, block.data_, "Cannot map memory of process ", pid, ": ", std::strerror(error));
  return block;
}

void Doorbell::ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) syscall(SYS_futex, &rings_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::sleep(uint32_t seen, std::chrono::nanoseconds longest) {
  const auto count = std::max<int64_t>(longest.count(), 0);
  const timespec limit{static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &rings_, FUTEX_WAIT, seen, &limit, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace neuron::distributed

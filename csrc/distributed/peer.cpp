#include "csrc/distributed/peer.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <sstream>
#include <utility>

#include "csrc/distributed/modelled.h"

namespace neuron::distributed {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  char text[128];
  const ssize_t length = readlink(path, text, sizeof text);
  return length > 0 ? std::string(text, length) : std::string();
}

/// Two processes with the same one can open each other's descriptors: one boot of one kernel, one view of pids, one user.
std::string host_identity() {
  std::string host = first_line("/proc/sys/kernel/random/boot_id") + "/" + link_target("/proc/self/ns/pid") + "/" +
                     std::to_string(geteuid()) + "/" + modelled().host;
  for (char& c : host)
    if (c == ' ') c = '_';
  return host;
}

/// Field 22 of /proc/<pid>/stat, in clock ticks since boot; 0 when there is no such process.
uint64_t start_time(pid_t pid) {
  const std::string line = first_line(("/proc/" + std::to_string(pid) + "/stat").c_str());
  std::istringstream rest(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string field;
  for (int i = 3; i < 22; ++i) rest >> field;
  uint64_t started = 0;
  rest >> started;
  return started;
}

SharedBlock& own_block() {
  static auto* const block = [] {
    auto* made = new SharedBlock(SharedBlock::create("neuron-doorbell", 4096));  // leaked: threads ring to the very end
    new (made->data()) Doorbell;
    return made;
  }();
  return *block;
}

}  // namespace

Doorbell& own_bell() {
  static auto& bell = *reinterpret_cast<Doorbell*>(own_block().data());
  return bell;
}

ProcessFacts ProcessFacts::of_this_process() {
  ProcessFacts facts;
  facts.host = host_identity();
  facts.pid = getpid();
  facts.started = start_time(facts.pid);
  facts.bell_fd = own_block().fd();
  return facts;
}

std::string ProcessFacts::text() const {
  std::ostringstream out;
  out << host << ' ' << pid << ' ' << started << ' ' << bell_fd << ' ' << group_fd << ' ' << core << ' ' << number;
  return out.str();
}

ProcessFacts ProcessFacts::parse(const std::string& text) {
  ProcessFacts facts;
  std::istringstream in(text);
  in >> facts.host >> facts.pid >> facts.started >> facts.bell_fd >> facts.group_fd >> facts.core >> facts.number;
  TORCH_CHECK(!in.fail(), "The store of the process group holds \"", text, "\", which no TorchNeuron process of this version wrote.");
  return facts;
}

std::shared_ptr<PeerProcess> PeerProcess::find(const ProcessFacts& facts) {
  static auto* const mutex = new std::mutex;
  static auto* const known = new std::map<std::pair<pid_t, uint64_t>, std::weak_ptr<PeerProcess>>;
  std::lock_guard<std::mutex> lock(*mutex);
  auto& entry = (*known)[{facts.pid, facts.started}];
  auto peer = entry.lock();
  if (!peer) entry = peer = std::make_shared<PeerProcess>(facts);
  return peer;
}

PeerProcess::PeerProcess(const ProcessFacts& facts) : pid(facts.pid), started_(facts.started) {
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  // With the pidfd at hand the pid cannot be reused unnoticed; was it the right process when we took it?
  TORCH_CHECK_WITH(DistBackendError, start_time(pid) == started_, "Process ", pid, " of this process group has ended.");
  bell_ = SharedBlock::open(pid, facts.bell_fd);
}

PeerProcess::~PeerProcess() {
  if (pidfd_ >= 0) close(pidfd_);
}

bool PeerProcess::alive() {
  if (ended_) return false;
  if (pidfd_ >= 0) {
    pollfd poll_for{pidfd_, POLLIN, 0};
    ended_ = poll(&poll_for, 1, 0) > 0;
  } else {
    ended_ = kill(pid, 0) != 0 || start_time(pid) != started_;  // a kernel before 5.3
  }
  return !ended_;
}

const char* PeerProcess::map(const Region& region, uint64_t epoch) {
  if (region.bytes == 0) return nullptr;
  if (epoch != epoch_) {
    segments_.clear();
    epoch_ = epoch;
  }
  SharedBlock& segment = segments_[region.fd];
  if (!segment) segment = SharedBlock::open(pid, static_cast<int>(region.fd));
  TORCH_CHECK_WITH(DistBackendError, region.offset + region.bytes <= segment.bytes(), "Process ", pid, " published ", region.bytes,
                   " bytes at offset ", region.offset, " of a segment of ", segment.bytes(), " bytes");
  return segment.data() + region.offset;
}

}  // namespace neuron::distributed

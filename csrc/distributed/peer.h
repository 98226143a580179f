// The other processes of this host that a process works with.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "csrc/distributed/shared_block.h"

namespace neuron::distributed {

/// What a process tells the others of its group about itself, as one line of text in the store.
struct ProcessFacts {
  std::string host;  ///< equal for two processes that can open each other's memory
  pid_t pid = 0;
  uint64_t started = 0;  ///< tells a process from a later one with the same pid
  int bell_fd = -1;
  int group_fd = -1;    ///< of the group's shared memory: rank 0 makes it
  int core = -1;        ///< which core of the host the process uses: -1 not known
  uint64_t number = 0;  ///< drawn for each group (roster.h)

  static ProcessFacts of_this_process();
  std::string text() const;
  static ProcessFacts parse(const std::string& text);
};

/// Where others find a piece of a process's memory.
struct Region {
  int64_t fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class PeerProcess {
 public:
  /// The peer that `facts` name, shared by all groups that it is in. Throws c10::Error when it is gone.
  static std::shared_ptr<PeerProcess> find(const ProcessFacts& facts);

  explicit PeerProcess(const ProcessFacts& facts);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  Doorbell& bell() { return *reinterpret_cast<Doorbell*>(bell_.data()); }

  /// False once the process has ended, however.
  bool alive();

  /// The peer's memory in this process. `epoch` is the peer's count of released segments when it published the region: what was mapped
  /// before it changed may be gone. Not thread safe: called by whoever steps the engine.
  const char* map(const Region& region, uint64_t epoch);

  const pid_t pid;

 private:
  const uint64_t started_;
  SharedBlock bell_;
  int pidfd_ = -1;
  bool ended_ = false;
  uint64_t epoch_ = 0;
  std::unordered_map<int64_t, SharedBlock> segments_;  // by the peer's descriptor
};

/// The bell of this process.
Doorbell& own_bell();

}  // namespace neuron::distributed

// What the eager path did and why: plain counters always, details while torch.neuron.explain() records.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace neuron {

struct OpCounters {
  std::atomic<uint64_t> hits{0};     ///< served from the cache
  std::atomic<uint64_t> misses{0};   ///< ran inline and were cached
  std::atomic<uint64_t> inlined{0};  ///< ran inline because their results depend on data
};

/// Launches of Programs of many calls, compiled or windows of Adaptive Eager.
struct ProgramCounters {
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> calls{0};            ///< in them
  std::atomic<uint64_t> fused_calls{0};      ///< in their fused groups
  std::atomic<uint64_t> unwritten_bytes{0};  ///< of temporaries that fused groups never wrote to memory
  void count(uint64_t of_calls, uint64_t fused, uint64_t unwritten) {
    launches.fetch_add(1, std::memory_order_relaxed);
    calls.fetch_add(of_calls, std::memory_order_relaxed);
    fused_calls.fetch_add(fused, std::memory_order_relaxed);
    unwritten_bytes.fetch_add(unwritten, std::memory_order_relaxed);
  }
};

enum class CopyKind { host_to_device, device_to_host, device_to_device };

/// Process-wide counters; all relaxed.
struct Counters {
  std::atomic<uint64_t> launches{0}, syncs{0}, fallbacks{0};
  std::atomic<uint64_t> tile_launches{0};  ///< launches that were a loop over tiles
  std::atomic<uint64_t> host_launches{0};  ///< launches that ran on the host because their program was still being compiled
  std::atomic<uint64_t> bytes[3] = {};     ///< by CopyKind
  ProgramCounters compiled, windows;
  std::atomic<uint64_t> closed_windows{0};  ///< also those that ran call by call
};
Counters& counters();

/// One line of a recording.
struct Note {
  std::string subject;  ///< overload, or kind of synchronisation
  std::string reason;
  std::string site;  ///< Python file:line, empty when not asked for
};

class Recording {
 public:
  void begin(bool sites);
  /// Stops and gives what was noted, in order.
  void end(std::vector<Note>* misses, std::vector<Note>* syncs, std::vector<Note>* fallbacks);
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void miss(std::string op, std::string reason);
  void sync(std::string why);
  void fallback(std::string op, std::string reason);

 private:
  void note(std::vector<Note>& list, std::string subject, std::string reason);

  std::atomic<bool> on_{false};
  bool sites_ = false;
  std::mutex mutex_;
  std::vector<Note> misses_, syncs_, fallbacks_;
};
Recording& recording();

/// Counts a call that ran on the host because the device has no kernel for it.
void count_fallback(const std::string& op);
/// How many there were of each overload since the process started.
std::map<std::string, uint64_t> fallback_counts();

/// Finds the Python line that is running; installed by the Python module, which owns the GIL business. Null without Python.
extern std::string (*python_call_site)();

/// Counts a moment at which the host had to wait for the device.
inline void note_sync(const char* why) {
  counters().syncs.fetch_add(1, std::memory_order_relaxed);
  if (recording().on()) recording().sync(why);
}

inline void note_bytes(CopyKind kind, uint64_t bytes) {
  counters().bytes[static_cast<int>(kind)].fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace neuron

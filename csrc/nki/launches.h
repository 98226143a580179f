// Launches of kernels that a thread of Python's replays, in stream order.
//
// Note [Launches]
// A launch is two records of its stream. The first says that its turn has come and hands it to the thread, the second blocks the stream
// until the thread is done (Note [Blocked streams] in completion.h). The thread takes launches in the order in which their turns come. It
// never holds the compute slot and never waits for a stream, so whoever runs a stream may wait for it, and need not have the GIL.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "csrc/runtime/completion.h"

namespace neuron::nki {

class Launches {
 public:
  static Launches& get();

  /// Adds a launch to `stream`. `number`, the caller's, is not in use. Throws when the stream is being captured, or cannot be blocked.
  void add(Stream& stream, uint64_t number);

  /// The next launch whose turn has come; waits for it. 0 once closed.
  uint64_t take();

  /// A launch that was taken is done; `error`, if any, becomes its stream's.
  void done(uint64_t number, std::exception_ptr error);

  /// Lets take() return, and fails what was not done.
  void close();

 private:
  class Launch;
  void turn_of(const std::shared_ptr<Launch>& launch);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::unordered_map<uint64_t, std::shared_ptr<Launch>> running_;  // their turns have come
  std::deque<uint64_t> ready_;                                     // those of them that were not taken
};

/// One OpenMP thread for what the calling thread runs from now on; the process's setting stays.
void run_on_one_thread();

}  // namespace neuron::nki

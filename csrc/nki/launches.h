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
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "csrc/runtime/completion.h"

namespace neuron::nki {

/// What the thread is to replay.
struct Turn {
  uint64_t number = 0;              ///< 0: nothing any more
  uint64_t kernel = 0;              ///< of a window (aten/window_kernels.h), as the search has named it; 0: a launch that Python has added
  std::vector<uint64_t> addresses;  ///< then: where the host finds its arguments and results
};

class Launches {
 public:
  static Launches& get();

  /// Told once, by any thread, that a turn is over.
  using Done = std::function<void(std::exception_ptr error)>;

  /// Adds a launch to `stream`. `number`, the caller's, is not in use and below 2^63. Throws when the stream is being captured, or cannot
  /// be blocked.
  void add(Stream& stream, uint64_t number);

  /// A kernel of a window whose turn has come.
  void turn_of(uint64_t kernel, std::vector<uint64_t> addresses, Done done);

  /// The next launch whose turn has come; waits for it.
  Turn take();

  /// A launch that was taken is done; `error`, if any, becomes its stream's.
  void done(uint64_t number, std::exception_ptr error);

  /// Lets take() return, and fails what was not done.
  void close();
  bool closed();

 private:
  class Launch;
  void turn_of(Turn turn, Done done);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  uint64_t last_number_ = uint64_t{1} << 63;    // of kernels of windows
  std::unordered_map<uint64_t, Done> running_;  // their turns have come
  std::deque<Turn> ready_;                      // those of them that were not taken
};

/// One OpenMP thread for what the calling thread runs from now on; the process's setting stays.
void run_on_one_thread();

}  // namespace neuron::nki

// A loaded Program.
#pragma once

#include <cstdint>

namespace neuron {

class Executable {
 public:
  virtual ~Executable() = default;

  /// Runs once. `words` is what Stream::launch() was given. Called by the consumer of a stream, one at a time per process.
  virtual void run(const uint64_t* words) = 0;

  /// For error messages and profiles: "aten::add.Tensor".
  virtual const char* name() const = 0;

  /// True when it never uses more than one host thread, so that it may run beside a busy host thread (see emulated/stream.cpp).
  bool serial = true;

  /// What it counts for among the calls that a stream may hold back, when it is a window's.
  uint32_t calls = 1;

  /// True when its results may differ in the last bits from those of the kernel that traced the call: the first call is then run again with
  /// it, so that the first and later calls give the same.
  bool repeats_first_run = false;
};

/// Whether the calling thread runs the work of streams at this moment: it must not wait for another thread that may wait for that.
bool runs_streams();

/// Host threads that a parallel executable may use, as its caller last saw it (at::get_num_threads() of the launching thread).
void set_compute_threads(int threads);
int compute_threads();

}  // namespace neuron

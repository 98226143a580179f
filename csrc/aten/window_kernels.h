// Windows in which NKI kernels take the place of calls (torch_neuronx.nki.replace).
//
// Note [Kernels in a window]
// A window that is built is shown to the search, if there is one, which names calls that one kernel stands for. The rest of the window's
// calls become Sequences of their own, the *parts* between kernels; temporaries that more than one part or a kernel touches lie in the
// block of temporaries at fixed places, and are inputs of the parts. All of it stays one record of the stream: a Completion, whose consumer
// runs the parts, and which blocks the stream while the thread of launches (nki/launches.h) replays a kernel. No Python runs but in that
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/program/program_target.h"
#include "csrc/program/sequence.h"

namespace neuron {

/// A kernel in the place of calls of a window.
struct WindowKernel {
  uint64_t id = 0;                       ///< what the thread of launches knows it by
  std::vector<int> calls;                ///< ascending; it runs in the place of the last one
  std::vector<Operand> inputs, outputs;  ///< first elements of contiguous tensors
  std::vector<int> numbers;              ///< scalar inputs whose values the kernel has built in
};

/// Finds kernels for windows; installed by the Python module. May be called by any thread; takes Python's lock itself.
class KernelSearch {
 public:
  /// `scalars`: two words for each scalar input of this launch.
  virtual std::vector<WindowKernel> find(const Sequence& window, const std::vector<uint64_t>& scalars) = 0;

 protected:
  ~KernelSearch() = default;
};
extern KernelSearch* kernel_search;

/// Changes whenever what the search would find does; 0 while nobody has ever asked for kernels.
extern std::atomic<uint64_t> kernel_search_version;

/// A window with kernels, ready to run.
class WindowWithKernels : public std::enable_shared_from_this<WindowWithKernels> {
 public:
  WindowWithKernels(const Sequence& window, std::vector<WindowKernel> kernels, const std::vector<uint64_t>& scalars, int device);
  ~WindowWithKernels();

  /// Whether the kernels hold for a launch with these scalars.
  bool fits(const uint64_t* scalars) const;

  /// Adds a launch to a stream with an open window. `words` as Note [Words of a Sequence] has them.
  void launch(Stream& stream, std::vector<uint64_t> words);

  size_t temporary_bytes = 0;  ///< the block that a launch needs
  int kernels = 0;
  int fused_calls = 0;  ///< of the parts
  size_t unwritten_bytes = 0;

 private:
  class Run;
  struct Part;
  /// What runs one after another: a part, or a kernel.
  struct Step {
    std::unique_ptr<Part> part;
    WindowKernel kernel;
  };
  struct Number {
    int scalar;
    uint64_t words[2];
  };
  void number_steps(const Sequence& window, const std::vector<WindowKernel>& kernels, std::vector<std::vector<int>>* calls);
  void place_temporaries(const Sequence& window, const std::vector<std::vector<int>>& calls);
  std::unique_ptr<Part> make_part(const Sequence& window, const std::vector<int>& calls, int device) const;

  std::vector<Step> steps_;
  std::vector<Number> numbers_;
  const int inputs_;
  std::vector<int> shared_;             ///< storages of the window that lie at fixed places of the block
  std::vector<size_t> shared_offsets_;  ///< where
  size_t shared_bytes_ = 0;             ///< the block's beginning; what follows serves one part after another
};

/// Kernels that launches of windows have replayed, since the process started.
std::atomic<uint64_t>& window_kernel_launches();

}  // namespace neuron

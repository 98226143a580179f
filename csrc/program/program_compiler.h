// From a Program to an executable for a chip: lowering and neuronx-cc, which live in Python (torch_neuronx/lowering,
// torch_neuronx/compiler).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/program/sequence.h"
#include "csrc/runtime/target.h"

namespace neuron {

/// A Program as an HLO module, and what the module's parameters and results are, in terms of the words of a launch (op_call.h, sequence.h).
struct LoweredProgram {
  struct Operand {
    enum class Kind : uint8_t {
      storage,  ///< the bytes from (word - offset) on: a storage of an argument, or a fresh one
      payload   ///< what the word holds (parameters only), as `as` says
    };
    enum class As : uint8_t {
      raw,      ///< its bytes: a value of a 0-dim CPU tensor, a complex128 (two words)
      integer,  ///< an int64, `add` more than the word says
      float32,  ///< a float64, rounded
      boolean   ///< one byte, 0 or 1
    };
    std::string name;  ///< in the NEFF
    Kind kind = Kind::storage;
    As as = As::raw;
    int word = 0;
    int64_t offset = 0;  ///< bytes from the operand's first byte to where the word points
    int64_t add = 0;
    size_t bytes = 0;
  };
  std::string name, target;
  std::string hlo;  ///< empty: the lowering looks at the values of numbers, so it has to be given them
  int lnc = 1;
  std::vector<Operand> inputs, outputs;  ///< a storage that is written in place is in both
};

/// A NEFF that is being made beside the program. The compiler's thread ends it once, with deliver() or fail().
class PendingNeff {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Only when done(). Throws what the compiler has thrown, each time.
  const std::string& neff() const {
    if (raise_) raise_();
    return neff_;
  }

  void deliver(std::string neff) {
    neff_ = std::move(neff);
    done_.store(true, std::memory_order_release);
  }
  void fail(std::function<void()> raise) {
    raise_ = std::move(raise);
    done_.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> done_{false};
  std::string neff_;
  std::function<void()> raise_;
};

/// The Python side. Takes Python's lock itself; may be called by any thread.
class ProgramCompiler {
 public:
  /// Throws c10::NotImplementedError when a call has no lowering, with the reason. `words`: of a launch, whose numbers then become
  /// constants; null: they come with each launch.
  virtual std::shared_ptr<const LoweredProgram> lower(const Program& program, const DeviceInfo& device, const uint64_t* words) = 0;
  virtual std::shared_ptr<const LoweredProgram> lower(const Sequence& sequence, const DeviceInfo& device) = 0;

  /// The NEFF, from the cache on disk or from neuronx-cc. Throws when the compiler fails.
  virtual std::string compile(const LoweredProgram& program) = 0;

  /// The same without waiting for neuronx-cc: done at once when the cache has it. Throws when it is known already that the compiler fails.
  virtual std::shared_ptr<const PendingNeff> compile_in_background(const LoweredProgram& program) = 0;

 protected:
  ~ProgramCompiler() = default;
};

/// Installed by the Python module; null without Python.
extern ProgramCompiler* program_compiler;

}  // namespace neuron

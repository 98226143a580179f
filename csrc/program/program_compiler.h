// From a Program to an executable for a chip: lowering and neuronx-cc, which live in Python (torch_neuronx/lowering,
// torch_neuronx/compiler).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/runtime/target.h"

namespace neuron {

/// A NEFF and what its inputs and outputs are, in terms of the words of a launch (op_call.h).
struct CompiledProgram {
  struct Operand {
    enum class Kind : uint8_t {
      storage,  ///< the bytes from (word - offset) on: a storage of an argument, or a fresh one
      payload   ///< what the word holds (inputs only), as `as` says
    };
    enum class As : uint8_t {
      raw,      ///< its bytes: a value of a 0-dim CPU tensor, an int64, a float64, a complex128 (two words)
      float32,  ///< a float64, rounded
      int32,    ///< an int64, its lower half
      boolean   ///< one byte, 0 or 1
    };
    std::string name;  ///< in the NEFF
    Kind kind = Kind::storage;
    As as = As::raw;
    int word = 0;
    int64_t offset = 0;  ///< bytes from the storage's first byte to where the word points
    size_t bytes = 0;
  };
  std::string neff;
  std::vector<Operand> inputs, outputs;  ///< a storage that is written in place is in both
};

/// Compiles a Program of one call for `device`; called on a host thread, takes Python's lock itself. Throws c10::NotImplementedError when
/// the call has no lowering, with the reason, and c10::Error when the compiler fails.
using ProgramCompiler = std::shared_ptr<const CompiledProgram> (*)(const Program& program, const DeviceInfo& device);

/// Installed by the Python module; null without Python.
extern ProgramCompiler program_compiler;

}  // namespace neuron

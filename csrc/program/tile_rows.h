// Which overloads are made of tile operations, and of which: the table that eager and fusion share.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>
#include <vector>

#include "csrc/program/tile_op.h"

namespace neuron {

/// Types in which a row computes.
enum class TileRule : uint8_t {
  common,   ///< operands are cast to the type that PyTorch's promotion gives; so is the result
  real,     ///< as common, but integers become the default dtype
  compare,  ///< operands as common, the result is bool
  logical,  ///< operands are cast to bool; so is the result
  own       ///< operands are cast to the type of the result
};

/// One row stands for all overloads of a base name (functional, in place, `out=`, `_foreach_`; Tensor or Scalar operands) whose arguments
/// it knows.
struct TileRow {
  const char* name;      ///< "add": without "aten::" and without the underscore of the in-place form
  const char* operands;  ///< names of arguments, in the operation's order; "?" after one: may be None; "!": a bool mask
  const char* numbers;   ///< names of arguments that are numbers of the operation
  TileRule rule;
  tiles::Op op;
  enum Trait : uint8_t {
    none = 0,
    opmath = 1,           ///< a 0-dim operand takes part unrounded, as ATen's kernels for bfloat16 and half read it
    checked = 2,          ///< a Scalar that the result's type cannot hold is an error
    copies = 4,           ///< moves bits only
    narrow_numbers = 8,   ///< numbers are rounded to the type first, as ATen's kernels for bfloat16 and half do
    narrow_scalars = 16,  ///< beside opmath: a Scalar is rounded, since ATen's mul of one multiplies it by the tensor, not the tensor by it
  };
  uint8_t traits = none;
  double constant = 0;  ///< of a row without operands: what it fills with
};

/// A row as one overload has it: places in its schema.
struct TileSignature {
  const TileRow* row = nullptr;
  std::vector<int> operands;  ///< argument of each operand; -1: the overload has none (optional ones only)
  std::vector<bool> masks;
  std::vector<int> numbers;  ///< -1: the overload has none, and the number is 1
  bool foreach = false;      ///< lists of tensors: the row for each element
  int written = -1;          ///< the argument that receives the result: `out`, or self in place; -1: a fresh result
};

/// The signature of an overload; null when it has none. Looked up once for each overload.
const TileSignature* tile_signature(const c10::OperatorHandle& op);

}  // namespace neuron

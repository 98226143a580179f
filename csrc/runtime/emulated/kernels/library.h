// The tile functions of one instruction set, and the choice of one. See Note [Tiles] in csrc/program/tile_op.h.
//
// Note [Instruction sets]
// functions.cpp, transcendental.cpp, rows.cpp and convert.cpp are compiled once for each: "portable" (what the compiler assumes of every
// processor), "avx2" and "avx512". Results of exact operations are the same in all; the others agree within the accuracy of Sleef. No fused
// multiply-add is made by the compiler, so a value depends on its operands alone: not on its place in a tile, nor on what runs before or
// after. The choice is the best one the processor has, or TORCH_NEURONX_VECTORS=portable|avx2|avx512.
#pragma once

#include <string>
#include <vector>

#include "csrc/program/tile_op.h"

namespace neuron::tiles {

struct TileArgs;
using TileFunction = void (*)(const TileArgs&);

struct TileArgs {
  void* out;
  const void* in[3];  ///< may be `out`
  int64_t count;      ///< elements
  const Number* numbers;
  // Of operations on rows:
  int64_t row = 0;               ///< elements of a row; `count` is some whole ones
  TileFunction round = nullptr;  ///< to the type in memory, for what is rounded on the way; null: nothing to do
};

struct Library {
  const char* name = "";
  TileFunction ops[kOps][kKinds] = {};       ///< null: not defined for this kind
  TileFunction widen[kTypes][kKinds] = {};   ///< memory of a type to a tile of a kind; null: float to integer
  TileFunction narrow[kKinds][kTypes] = {};  ///< a tile to memory; null: float to integer
  TileFunction round[kTypes] = {};           ///< a tile (of the type's kind), to what the type can hold; null: nothing to do
  /// `count` elements of `size` bytes, `stride` bytes apart, to or from a packed row.
  void (*gather)(void* to, const void* from, int64_t stride, int64_t count, int size) = nullptr;
  void (*scatter)(void* to, const void* from, int64_t stride, int64_t count, int size) = nullptr;
};

/// The library in use. Throws std::runtime_error when TORCH_NEURONX_VECTORS names one that this build or this processor lacks.
const Library& library();

/// Names of those that this processor can run, best first.
std::vector<std::string> available_libraries();

}  // namespace neuron::tiles

// A group: calls over one flat iteration space, as the steps of one loop over tiles. What fusion.h makes and a target loads.
//
// Note [Flat space]
// All calls of a group have results of `elements` elements. A flat index is a position in the memory order of the results (row-major for a
// contiguous one). Each operand in memory has a layout of its own from flat index to address: one pair (size, stride) for each run of
// dimensions that does not collapse, so a contiguous operand has one pair and a broadcast scalar one of stride 0.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "csrc/program/tile_op.h"

namespace neuron {

/// Where a word of the launch comes from: words[index] + offset, or `offset` itself.
struct WordRef {
  int index = -1;      ///< -1: constant
  int64_t offset = 0;  ///< bytes for an address; bits for a constant

  bool operator==(const WordRef&) const = default;
};

/// An operand in memory. Sizes and strides (in bytes) from the outermost to the innermost.
struct TileMemory {
  WordRef address;
  tiles::Type type = tiles::Type::f32;
  tiles::Span span = tiles::Span::elements;
  c10::SmallVector<int64_t, 4> sizes, strides;

  bool contiguous() const { return sizes.size() == 1 && (strides[0] == tiles::size_of(type) || sizes[0] == 1); }
};

/// A number that comes with the launch, or is known.
struct TileNumber {
  enum class From : uint8_t { integer, boolean, real, memory };
  WordRef word;
  From from = From::real;
  tiles::Type type = tiles::Type::f32;     ///< of `memory`: the word holds the bytes of a 0-dim tensor of this type
  bool integer = false;                    ///< what the user of the number wants
  tiles::Type rounded = tiles::Type::f64;  ///< what a real is rounded to first

  bool operator==(const TileNumber&) const = default;
};

/// A tile that holds one number, made once for each launch and thread.
struct TileConstant {
  int number = 0;
  tiles::Type type = tiles::Type::f32;  ///< which the number is rounded to first
  bool rounded = true;                  ///< false: only to the kind of the tile
  bool checked = false;                 ///< a number that the type cannot hold is an error, in PyTorch's words
  tiles::Kind kind = tiles::Kind::f32;  ///< of the tile
  int tile = 0;
};

/// One step of the loop. Tiles are numbered: first one for each memory (the place in memory itself, where it is contiguous), then scratch.
struct TileStep {
  enum class What : uint8_t {
    op,       ///< out = op(in...), of `kind`; `type`: what it computes in
    widen,    ///< in[0] holds `type`, out a tile of `kind`
    narrow,   ///< in[0] a tile of `kind`, out holds `type`
    round,    ///< in[0] and out of type's kind: to what `type` can hold
    gather,   ///< memory in[0] to out, packed
    scatter,  ///< in[0], packed, to memory out
  };
  What what = What::op;
  tiles::Op op = tiles::Op::identity;
  tiles::Kind kind = tiles::Kind::f32;
  tiles::Type type = tiles::Type::f32;
  int out = -1;
  int in[3] = {-1, -1, -1};
  int numbers = 0;  ///< the first of its numbers
  /// For which of the tile's values it runs: `row`: once, before the loop, for what all rows share; `pairs`: never, its maker runs for
  /// elements.
  tiles::Span span = tiles::Span::elements;
};

struct TileScratch {
  uint8_t size;  ///< bytes of a value
  tiles::Span span;
};

struct TileGroup {
  int64_t elements = 0;
  int64_t tile = 1024;  ///< elements of a tile; with rows, whole ones
  int64_t row = 0;      ///< elements of a row, see Note [Rows] in tile_op.h; 0: the group has none
  std::vector<TileMemory> memories;
  std::vector<TileNumber> numbers;
  std::vector<TileConstant> constants;
  std::vector<TileStep> steps;
  std::vector<TileScratch> scratch;
  int calls = 0;  ///< OpCalls in it

  int first_scratch() const { return static_cast<int>(memories.size()); }
};

}  // namespace neuron

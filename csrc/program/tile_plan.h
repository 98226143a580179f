// What a call is as tile operations: the types it computes in and the layouts of its operands.
#pragma once

#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/program/tile_group.h"
#include "csrc/program/tile_rows.h"

namespace neuron {

/// The memory type of a dtype; nothing for complex numbers and other types without tiles.
std::optional<tiles::Type> tile_type(at::ScalarType type);

/// From flat index to address: see Note [Flat space] in tile_group.h.
struct TileLayout {
  c10::SmallVector<int64_t, 4> sizes, strides;  // strides in bytes

  bool operator==(const TileLayout& other) const { return sizes == other.sizes && strides == other.strides; }
  bool contiguous(int64_t item) const { return sizes.size() == 1 && (strides[0] == item || sizes[0] == 1); }
};

/// Bytes from the first element to the end of the last.
int64_t extent(const TileLayout& layout, int64_t item);

/// Where a tensor of a call lies. Tensors of one storage number may share memory, others do not.
struct TilePlace {
  int storage = -1;
  int64_t byte_offset = 0;  ///< of the first element, to be compared with others of the storage
  WordRef address;          ///< of the first element
};

/// A call as fusion sees it: what it computes, and where its operands and its result lie.
struct TileCall {
  const OpCall* call = nullptr;
  const TileSignature* signature = nullptr;
  int element = -1;                ///< of the lists of a `_foreach_` call
  std::vector<TilePlace> tensors;  ///< by slot
  std::vector<WordRef> words;      ///< by word of the call's launch: where payloads and host scalars come from
  TensorMeta result;               ///< of the result, an argument's own for one that is written
  TilePlace result_place;
  struct Result {
    TensorMeta meta;
    TilePlace place;
  };
  std::vector<Result> more;  ///< further results: of a norm, the mean and the reciprocal deviation of each row
};

/// One argument of a call.
struct TileArgument {
  enum class Is : uint8_t { tensor, host_scalar, payload, constant, none } is = Is::none;
  const TensorSlot* slot = nullptr;
  int index = -1;  // of the slot
  const Payload* payload = nullptr;
  const c10::IValue* value = nullptr;
};

/// What an operation works on. Made before anything is added to a group, so that a call that does not fit leaves no trace.
struct TilePlan {
  struct Operand {
    TileArgument argument;
    TileLayout layout;  // of a tensor; of a norm's weight and bias, within a row
    tiles::Type type;   // of a tensor
    bool mask = false;
    bool rounded = true;
    tiles::Span span = tiles::Span::elements;
  };
  tiles::Op op;
  tiles::Type compute;  // operands are cast to it
  tiles::Type made;     // type of the operation's result
  tiles::Type stored;   // type of the result in memory
  int64_t row = 0;      // elements of a row, of an operation on rows
  TileLayout result;
  std::vector<Operand> operands;
  std::vector<TileArgument> numbers;
};

/// How many elements the lists of a `_foreach_` call have, 1 for other calls; 0 when lists differ in length.
int tile_elements(const OpCall& call, const TileSignature& signature);

/// The slot that receives the result of `element`; null when the result is fresh, or goes to no tensor of the device.
const TensorSlot* written_slot(const OpCall& call, const TileSignature& signature, int element);

/// Nothing when there is no tile function for the call's types and layouts.
std::optional<TilePlan> plan_tiles(const TileCall& call);

/// The dtype of a Scalar argument.
at::ScalarType number_dtype(const TileArgument& argument);

}  // namespace neuron

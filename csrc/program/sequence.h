// Sequence: a Program of many calls. What a Recorder (recorder.h) writes, fusion (fusion.h) groups, and a target loads.
//
// Note [Storages of a Sequence]
// Every tensor of a Sequence lies in one of its storages, `byte_offset` bytes from the storage's base to the tensor's first element:
//   input: its base is the first element of the tensor input that leads it (the first input on that storage), so offsets may be negative;
//   fresh: made by a call of the Sequence (or by `empty`); its base is its beginning. It `escapes` when a result lies in it: then it
//          outlives the launch; else it is a temporary, and a target may put it where it likes, or nowhere.
// Calls are in the order in which eager ran them. Whether two of them may change places follows from `reads` and `writes`: call-level sets
// of storages, from the schema's alias annotations. A storage that a call makes is among its writes.
//
// Note [Words of a Sequence]
// A launch is a list of 64-bit words:
//   one per input storage: the device address of its base, in the order of Sequence::storages;
//   two per scalar input: its bytes, zero-padded (as a 0-dim CPU tensor's in op_call.h);
//   two when draws > 0: the generator's seed, and the offset of the first Philox word of this launch;
//   one per escaping storage: its device address, in the order of Sequence::storages;
//   one more: the device address of the block of temporaries (null when there are none).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/runtime/executable.h"

namespace neuron {

/// Where one word of a call's launch comes from.
struct WordSource {
  enum class Kind : uint8_t {
    constant,  ///< `value`
    address,   ///< base of storage `index` + `value` bytes
    scalar,    ///< word `value` (0 or 1) of scalar input `index`
    seed,      ///< the generator's seed
    draw       ///< the launch's first Philox offset + `value`
  };
  Kind kind = Kind::constant;
  int index = -1;
  int64_t value = 0;
};

/// A tensor's first element. No storage (-1): a host scalar, or a tensor without memory (no elements, a ZeroTensor).
struct Operand {
  int storage = -1;
  int64_t byte_offset = 0;
};

struct SequenceCall {
  std::shared_ptr<const Program> program;               ///< of one call: overload, constants, slots, payloads, results
  Executable* executable = nullptr;                     ///< eager's, for running the call as it is
  c10::intrusive_ptr<c10::intrusive_ptr_target> owner;  ///< keeps `executable` alive
  std::vector<WordSource> words;                        ///< as Note [Words] of op_call.h orders them
  std::vector<Operand> tensors;                         ///< by slot of the OpCall
  std::vector<std::vector<Operand>> results;            ///< by returned value and element, as program->returns
  std::vector<int> reads, writes;                       ///< storages, ascending, each once

  const OpCall& call() const { return program->calls[0]; }
};

struct SequenceStorage {
  enum class Kind : uint8_t { input, fresh };
  Kind kind = Kind::fresh;
  int input = -1;     ///< which tensor input leads it
  size_t bytes = 0;   ///< of a fresh one
  int64_t begin = 0;  ///< of an input: bytes from its base to the first and past the last that a call or a result may touch
  int64_t end = 0;
  bool escapes = false;  ///< a result lies in it
  int first = -1;        ///< the first call that touches it, and the last; -1: none does
  int last = -1;
};

/// What the Sequence returns.
struct SequenceResult {
  enum class Kind : uint8_t {
    input,     ///< the very input `index` (of all inputs, not only tensors)
    tensor,    ///< a new tensor at `operand`, described by `meta`
    same,      ///< the same tensor as result `index`
    constant,  ///< `value`, which follows from the key
    none       ///< None
  };
  Kind kind = Kind::none;
  int index = -1;
  Operand operand;
  TensorMeta meta;  ///< without its offset: `operand` tells it
  c10::IValue value;
};

struct Sequence {
  std::string name;
  std::vector<SequenceCall> calls;
  std::vector<SequenceStorage> storages;  ///< input storages first
  int input_storages = 0;
  int scalars = 0;     ///< 0-dim CPU tensors among the inputs
  uint64_t draws = 0;  ///< Philox words that one launch takes
  std::vector<SequenceResult> results;

  // Places in Note [Words of a Sequence].
  int scalar_word(int scalar) const { return input_storages + 2 * scalar; }
  int seed_word() const { return input_storages + 2 * scalars; }
  int fresh_words() const { return seed_word() + (draws > 0 ? 2 : 0); }
};

/// A call whose payloads are constants, taken from `words`. `tensors`: by slot; `fresh`: where each fresh storage of the Program lies.
/// `executable` and `owner` are the caller's to set.
SequenceCall make_call(std::shared_ptr<const Program> program, std::vector<Operand> tensors, const std::vector<Operand>& fresh,
                       const uint64_t* words);

/// Removes calls that do nothing but fill temporaries which nobody needs.
void drop_unneeded_calls(Sequence& sequence);

/// Fills in SequenceStorage::first and last.
void find_lifetimes(Sequence& sequence);

}  // namespace neuron

// OpCall: one ATen overload with its arguments in schema order. Program: OpCalls on slots, what every target runs.
//
// Note [Words]
// A launch is a list of 64-bit words, in the order in which the front end meets the arguments:
//   one word per tensor slot that leads a storage group: the device address of the tensor's first element;
//   two words per payload (a Scalar, or the value of a 0-dim CPU tensor);
//   then one word per fresh output storage: its device address.
// Slots and payloads name their first word.
//
// Note [Storage groups]
// Arguments that share a storage form a group, so that kernels see the aliasing that the user made. Its first member leads
// it. Alone in its group, a tensor is described from its own first element (offset 0), so a slice at another offset is the
// same Program. Members of a larger group keep their offsets, which are then part of the key.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace neuron {

struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;  ///< elements from the start of its storage, as its group describes it
  bool conj = false, neg = false, wrapped_number = false;
  bool needs_grad = false;  ///< some kernels keep more for a backward pass when an input requires a gradient (and grad mode is on)
  bool zero = false;        ///< a ZeroTensor: zeros without memory

  /// Whether a kernel that looks at requires_grad would keep something for a backward pass.
  static bool needs_gradient(const at::TensorBase& tensor);
  static TensorMeta of(const at::TensorBase& tensor, int64_t offset);
  bool matches(const at::TensorBase& tensor) const;  ///< dtype, sizes, strides, conj, neg and zero bits
  size_t span_bytes() const;                         ///< bytes from the storage's start to the last element's end
};

/// A place in the argument list: an argument, or an element of a list argument.
struct Place {
  int arg = 0;
  int element = -1;
};

struct TensorSlot {
  Place place;
  TensorMeta meta;
  int word = -1;     ///< first word: an address when it leads its group, a payload when host_scalar; else -1
  int leader = -1;   ///< index of the slot that leads the group (itself when alone)
  int same_as = -1;  ///< earlier slot that is the same tensor
  bool host_scalar = false;
  bool read = true, written = false;  ///< what the call does to its memory
};

struct Payload {
  enum class Type : uint8_t { integer, boolean, real, complex };
  Place place;
  int word = 0;
  Type type = Type::integer;
};

struct OpCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  ///< constants in place; places of slots and payloads hold nothing of meaning
  std::vector<TensorSlot> tensors;
  std::vector<Payload> payloads;
};

/// Puts a value into its place among the arguments.
void put(std::vector<c10::IValue>& arguments, const Place& where, c10::IValue value);

/// The call's arguments, with lists of their own where elements are slots or payloads: IValue copies share their list.
std::vector<c10::IValue> own_lists(const OpCall& call);

/// What one returned value is.
struct ResultMeta {
  enum class Kind : uint8_t {
    argument,   ///< the very tensor of slot `source`
    view,       ///< a new tensor on the storage of slot `source`; meta.offset counts from that slot's first element
    fresh,      ///< a new tensor on fresh storage `source`
    undefined,  ///< an undefined tensor
    constant    ///< a value that follows from the key
  };
  Kind kind = Kind::fresh;
  int source = 0;
  TensorMeta meta;
  c10::IValue value;
};

/// One returned value of the schema: a single result or a list of them.
struct ReturnMeta {
  bool is_list = false;
  std::vector<ResultMeta> results;
};

/// A fresh storage that the Program fills.
struct FreshStorage {
  size_t bytes = 0;
  int allocation = -1;  ///< which allocation of the kernel becomes it (emulated target); -1: copied afterwards
};

struct Program {
  std::vector<OpCall> calls;
  int input_words = 0;  ///< words before the fresh storages
  std::vector<FreshStorage> fresh;
  std::vector<ReturnMeta> returns;

  /// Of the tensors that its calls are given and of the storages that they make.
  uint64_t bytes() const;
};

}  // namespace neuron

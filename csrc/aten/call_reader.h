// Reads the arguments of a dispatcher call: into the key that its Program is cached by, and into the words of its launch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <unordered_map>

#include "csrc/program/op_call.h"

namespace neuron {

/// What the schema says of one argument.
struct ArgSpec {
  bool number = false;   ///< Scalar, Scalar?, Scalar[], float or float?: payload, not key
  bool device = false;   ///< Device or Device?: becomes the CPU for the kernel
  bool written = false;  ///< the kernel writes it
  bool out = false;      ///< ... and does not read it
  bool accepts_cpu = false;
};

/// What is known of an overload, read once from its schema and the tables in metadata.cpp.
struct OpSpec {
  std::vector<ArgSpec> arguments;
  bool scalars_in_key = false;
  bool offsets_in_key = false;
  bool shaped_by_masks = false;
};

class CallReader {
 public:
  CallReader(const c10::OperatorHandle& op, const OpSpec& spec, c10::ArrayRef<c10::IValue> arguments);

  /// Throws for tensors on more than one device. Returns false when an argument must first be moved to the device
  /// (`cpu_argument()` says which).
  bool read();

  c10::ArrayRef<uint64_t> key() const { return key_; }
  c10::SmallVectorImpl<uint64_t>& words() { return words_; }
  c10::ArrayRef<uint32_t> marks() const { return marks_; }
  int device() const { return device_; }
  int cpu_argument() const { return cpu_argument_; }
  bool cacheable() const { return cacheable_; }
  const at::Tensor& tensor(size_t slot) const { return *tensors_[slot].tensor; }

  /// The one call as a Program, results unknown, and its tensors by slot.
  Program program() const;
  std::vector<at::Tensor> tensors() const;

 private:
  struct Ref {
    const at::Tensor* tensor;
    Place place;
    int word, leader, same_as;
    bool host_scalar, grouped;
  };

  void read_value(const c10::IValue& value, const ArgSpec& spec, Place place);
  void read_list(const c10::IValue& value, const ArgSpec& spec, int arg);
  void read_tensor(const at::Tensor& tensor, const ArgSpec& spec, Place place);
  void read_host_tensor(const at::Tensor& tensor, const ArgSpec& spec, Place place);
  void read_scalar(const c10::IValue& value, Place place);
  void join_group(Ref& ref);
  int find_storage(const c10::StorageImpl* storage);
  void settle_device();
  [[noreturn]] void fail_mixed(const at::Tensor& other) const;

  const c10::OperatorHandle& op_;
  const OpSpec& spec_;
  c10::ArrayRef<c10::IValue> arguments_;
  c10::SmallVector<uint64_t, 96> key_;
  c10::SmallVector<uint64_t, 48> words_;
  c10::SmallVector<uint32_t, 16> marks_;
  c10::SmallVector<Ref, 8> tensors_;
  c10::SmallVector<Payload, 4> payloads_;
  std::unique_ptr<std::unordered_map<const c10::StorageImpl*, int>> storages_;  // only for long lists
  int device_ = -1;
  int asked_device_ = -1;
  int cpu_argument_ = -1;
  bool cacheable_ = true;
};

/// Process-wide switches that change how kernels lay results out or what they fill them with: part of every key.
uint64_t global_flags();

/// Whether an eager key was read under torch.use_deterministic_algorithms().
inline bool is_deterministic(c10::ArrayRef<uint64_t> key) { return (key[1] >> 8 & 1) != 0; }

/// Says which argument of `now` differs from `before` and how, for explain(): "self: sizes [2, 3] -> [4, 3]".
std::string describe_difference(const c10::OperatorHandle& op, c10::ArrayRef<uint64_t> before, c10::ArrayRef<uint32_t> marks_before,
                                c10::ArrayRef<uint64_t> now, c10::ArrayRef<uint32_t> marks_now);

}  // namespace neuron

// What a target does with Programs. Kept apart from target.h, which knows no ATen.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/program/sequence.h"
#include "csrc/runtime/executable.h"
#include "csrc/runtime/stream.h"

namespace neuron {

/// A Sequence that a target has made runnable. Its words: Note [Words of a Sequence].
class LoadedSequence : public Executable {
 public:
  /// Whether the device could run it now. False while its program is being compiled in the background; a launch runs on the host then, and
  /// whoever has another way may take that. Throws what the compiler has thrown.
  virtual bool ready() { return true; }

  size_t temporary_bytes = 0;  ///< the block that a launch needs beside its escaping storages
  std::vector<int> placed;     ///< the storages that lie in it
  int kernels = 0;             ///< steps that are one call's kernel
  int groups = 0;              ///< fused groups
  int fused_calls = 0;         ///< calls in them
  size_t unwritten_bytes = 0;  ///< memory that fusion does not need: storages that live and die inside one group
};

class ProgramTarget {
 public:
  virtual ~ProgramTarget() = default;

  /// Makes a Program of one call runnable on a device.
  virtual std::unique_ptr<Executable> load(std::shared_ptr<const Program> program, int device) = 0;

  /// Makes a Sequence runnable on a device.
  virtual std::unique_ptr<LoadedSequence> load(std::shared_ptr<const Sequence> sequence, int device) = 0;

  /// Runs the one call of `program` on the calling thread, after all earlier work of `stream`, and learns from it what the
  /// Program returns: fills program.returns and program.fresh, pushes the results (tensors of the device) on `results`.
  /// `tensors`: the actual tensors of the call's slots. Throws what the kernel throws.
  /// Returns false when the outcome did not follow from the metadata of the arguments (an `out=` tensor was resized), so that
  /// the Program must not be kept.
  virtual bool trace(Program& program, c10::ArrayRef<at::Tensor> tensors, Stream& stream, torch::jit::Stack& results) = 0;

  /// Whether this target learns what a call returns without running it: then infer() stands for trace(), and a call that misses the cache
  /// is launched like one that hits it.
  virtual bool infers() const { return false; }

  /// Fills program.returns and program.fresh of a Program of one call. `tensors`: the actual tensors of the call's slots. Throws what the
  /// call would throw for bad arguments. Returns false, with the reason, when that cannot be told beforehand: such a call runs on the host.
  virtual bool infer(Program& program, c10::ArrayRef<at::Tensor> tensors, std::string* why) {
    (void)program, (void)tensors, (void)why;
    return false;
  }

  /// Runs a call on the host that infer() or load() refused, after all earlier work of `stream`: copies its tensors both ways.
  virtual void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) { run_any_layout(op, stack, stream); }

  /// Runs a call whose tensors may have any layout (sparse, nested, quantized), on the calling thread after all earlier work of
  /// `stream`. Such calls are not cached: their results depend on data.
  virtual void run_any_layout(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) = 0;

  /// A graph's first run begins on `stream`: a target that infers may hold its launches back and compile nothing for them, since the
  /// graph's own launch will most likely stand for all of them. Gives whether it does; then release_launches() must follow.
  virtual bool hold_launches(Stream& stream) {
    (void)stream;
    return false;
  }

  /// Ends that. Launches `instead` in the place of what was held back; or, when `instead` is null or something had to wait for a part of
  /// it, launches what was held back call by call.
  virtual void release_launches(Stream& stream, Executable* instead, c10::ArrayRef<uint64_t> words) {
    (void)stream, (void)instead, (void)words;
  }

  /// Results that differed from their cached metadata, counted under TORCH_NEURONX_CHECK_META=1.
  virtual uint64_t meta_mismatches() const = 0;
};

/// Dispatch keys that kernels must not meet: what they stand for was handled before the device's kernel was called.
const c10::DispatchKeySet& keys_above_kernels();

/// The one of the target in use.
ProgramTarget& program_target();

}  // namespace neuron

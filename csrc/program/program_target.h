// What a target does with Programs. Kept apart from target.h, which knows no ATen.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/runtime/executable.h"
#include "csrc/runtime/stream.h"

namespace neuron {

class ProgramTarget {
 public:
  virtual ~ProgramTarget() = default;

  /// Makes a Program of one call runnable on a device.
  virtual std::unique_ptr<Executable> load(std::shared_ptr<const Program> program, int device) = 0;

  /// Runs the one call of `program` on the calling thread, after all earlier work of `stream`, and learns from it what the
  /// Program returns: fills program.returns and program.fresh, pushes the results (tensors of the device) on `results`.
  /// `tensors`: the actual tensors of the call's slots. Throws what the kernel throws.
  /// Returns false when the outcome did not follow from the metadata of the arguments (an `out=` tensor was resized), so that
  /// the Program must not be kept.
  virtual bool trace(Program& program, c10::ArrayRef<at::Tensor> tensors, Stream& stream, torch::jit::Stack& results) = 0;

  /// Runs a call whose tensors may have any layout (sparse, nested, quantized), on the calling thread after all earlier work of
  /// `stream`. Such calls are not cached: their results depend on data.
  virtual void run_any_layout(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) = 0;

  /// Results that differed from their cached metadata, counted under TORCH_NEURONX_CHECK_META=1.
  virtual uint64_t meta_mismatches() const = 0;
};

/// The one of the target in use.
ProgramTarget& program_target();

}  // namespace neuron

// What is known of an overload beyond its schema: the reviewed tables of the eager path. An overload that is in no table
// gets its behaviour from its schema and PyTorch's own tags.
#pragma once

#include <string_view>

#include "csrc/program/op_call.h"

namespace neuron {

/// Where the metadata of an overload's results comes from, see docs/dev/eager.md.
enum class Metadata : uint8_t {
  fixed,      ///< from the key: cached
  dynamic,    ///< from data: runs inline each time
  host_value  ///< returns a value to the host: runs inline each time and is counted as a synchronisation
};

Metadata metadata_of(const c10::OperatorHandle& op);

/// Its results follow from the key unless one of its indices is a mask (bool or uint8 tensor).
bool shaped_by_masks(const c10::OperatorHandle& op);

/// The values of its Scalars decide a shape or a dtype, so they are part of the key (`arange` family).
bool scalars_shape_it(const c10::OperatorHandle& op);

/// It reads the storage offset of its argument as a number, so a tensor keeps its offset.
bool reads_offset(const c10::OperatorHandle& op);

/// The CPU's kernel leaves its `out=` tensors wrong, or writes past their end, unless they are contiguous.
bool needs_contiguous_out(const c10::OperatorHandle& op);

/// CUDA accepts CPU tensors of any size as this argument (index tensors...): they are moved to the device.
bool accepts_cpu_tensor(const c10::OperatorHandle& op, int arg);

/// It writes this argument without saying so in its schema (running statistics of batch norms).
bool writes_unannounced(const c10::OperatorHandle& op, const c10::Argument& argument);

/// Makes a traced Program independent of torch.set_default_dtype(), which is process-wide state that kernels read when they run, maybe
/// after the user has changed it: a factory's missing dtype becomes the one that was found. Returns true when that cannot be done (a float
/// result of integers): such a launch must have run before the caller goes on.
bool fix_default_dtype(Program& program);

/// One host thread is enough: small tensors, and no overload whose work grows faster than its tensors.
bool is_serial(const Program& program);

}  // namespace neuron

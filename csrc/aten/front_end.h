// The boxed, schema-driven kernel of every overload: dispatcher call -> OpCall -> launch. See docs/dev/eager.md.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/runtime/stream.h"

namespace neuron {

/// Counts of one overload since the process started (or since clear_op_counts()).
struct OpCounts {
  std::string name;
  uint64_t hits, misses, inlined;
};
std::vector<OpCounts> op_counts();
void clear_op_counts();

/// `executable`, or under TORCH_NEURONX_ENABLE_STACK_TRACE a wrapper for one launch that adds the Python line to its errors.
Executable& with_call_site(Executable& executable, const Stream& stream);

/// The boxed kernel of one overload, for registration.
c10::KernelFunction boxed_kernel(const c10::OperatorHandle& op);

/// Registers the boxed kernel on PrivateUse1 for every overload of `aten` and `neuron` that is ours to run and has no kernel
/// there yet; called once, after all static registrations. Returns how many.
int register_front_end();

/// Whether register_front_end() takes an overload, and why (not): for the test that compares the dispatcher's table with ours.
std::string front_end_verdict(const c10::OperatorHandle& op);

class OpState;

/// An overload that other kernels launch: looks it up once, then goes through the cache as the boxed kernel does.
class LaunchedOp {
 public:
  LaunchedOp(const char* name, const char* overload);

  /// Arguments on the stack in schema order; leaves the results there.
  void operator()(torch::jit::Stack* stack) const;

  template <class... Args>
  torch::jit::Stack operator()(Args&&... args) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Args>(args)...);
    (*this)(&stack);
    return stack;
  }

 private:
  OpState* state_;
};

}  // namespace neuron

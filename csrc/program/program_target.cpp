#include "csrc/program/program_target.h"

#include "csrc/program/program_compiler.h"
#include "csrc/runtime/emulated/executable.h"
#include "csrc/runtime/target.h"
#include "csrc/runtime/trainium/executable.h"

namespace neuron {

ProgramCompiler* program_compiler = nullptr;

const c10::DispatchKeySet& keys_above_kernels() {
  static const c10::DispatchKeySet keys = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                          c10::functorch_transforms_ks | c10::python_ks |
                                          c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::Tracer});
  return keys;
}

ProgramTarget& program_target() {
  static ProgramTarget& chosen = target().device_info(0).emulated ? emulated_programs() : trainium::trainium_programs();
  return chosen;
}

}  // namespace neuron

// The one fallback policy: overloads that have no kernel for the device run on the host only as TORCH_NEURONX_FALLBACK says.
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <mutex>
#include <set>
#include <string>

#include "csrc/aten/fallback.h"
#include "csrc/aten/interrupt.h"
#include "csrc/program/explain.h"
#include "csrc/runtime/settings.h"

namespace neuron {
namespace {

std::string reason_of(const c10::OperatorHandle& op) {
  if (op.operator_name().name.compare(0, 6, "aten::") == 0) return "it has no kernel for device neuron";
  return "its library registers no kernel for device neuron (PrivateUse1)";
}

void warn_once(const std::string& name, const std::string& reason) {
  static std::mutex mutex;
  static auto* warned = new std::set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!warned->insert(name).second) return;
  }
  TORCH_WARN("<TorchNeuron/Fallback> ", name, " runs on the host: ", reason,
             ". Its tensors are copied both ways at each call. TORCH_NEURONX_FALLBACK=error refuses this, =allow accepts it silently; "
             "torch.neuron.explain() counts it.");
}

}  // namespace

void allow_fallback(const c10::OperatorHandle& op, const std::string& reason) {
  const std::string name = toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(settings().fallback != Fallback::error, name, " cannot run on device neuron: ", reason,
                              ", and TORCH_NEURONX_FALLBACK=error forbids running it on the host. Set TORCH_NEURONX_FALLBACK=warn or "
                              "allow, or move its tensors to the CPU.");
  interrupt("an operator that runs on the host");
  count_fallback(name);
  recording().fallback(name, reason);
  if (settings().fallback == Fallback::warn) warn_once(name, reason);
}

namespace {

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  allow_fallback(op, reason_of(op));
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace neuron

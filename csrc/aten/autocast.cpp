#include "csrc/aten/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace neuron {

void set_default_autocast_dtype() noexcept {
  thread_local bool done = false;
  if (done) return;
  done = true;
  // Inside torch.autocast the thread has chosen already.
  if (!at::autocast::is_autocast_enabled(c10::kPrivateUse1)) at::autocast::set_autocast_dtype(c10::kPrivateUse1, at::kBFloat16);
}

namespace {

// Everything that no list names runs as it is.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

/// Refused on CUDA too: a float16 or bfloat16 probability near 0 or 1 has no logarithm worth having.
at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Many models use a sigmoid layer right before "
      "the "
      "binary cross entropy layer. In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits or "
      "torch.nn.BCEWithLogitsLoss, which are safe to autocast.");
}

// The lists are PyTorch's own, so they are CUDA's.
#define NEURON_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define NEURON_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define NEURON_FP32_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define NEURON_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

using namespace at;  // PyTorch's list spells its signatures for code inside this namespace

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(NEURON_LOWER_PRECISION)
  AT_FORALL_FP32(NEURON_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(NEURON_FP32_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(NEURON_PROMOTE)
  m.impl("aten::binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace

}  // namespace neuron

#include "csrc/aten/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace neuron {

bool set_default_autocast_dtype() noexcept {
  thread_local bool done = false;
  if (done) return false;
  done = true;
  // Inside torch.autocast the thread has chosen already.
  if (at::autocast::is_autocast_enabled(c10::kPrivateUse1)) return false;
  at::autocast::set_autocast_dtype(c10::kPrivateUse1, at::kBFloat16);
  return true;
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

// The lists are PyTorch's own, so they are CUDA's, but for the next.
#define NEURON_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define NEURON_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define NEURON_FP32_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define NEURON_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

// Factorisations, Fourier transforms and the like have no kernels of bfloat16. On CUDA they raise under autocast when an earlier op has
// made their argument one; here they run in float32, which is what PyTorch's list for the CPU says.
#define NEURON_FORALL_WITHOUT_NARROW_KERNELS(_) \
  _(cholesky)                                   \
  _(cholesky_inverse)                           \
  _(cholesky_solve)                             \
  _(inverse)                                    \
  _(pinverse)                                   \
  _(lu_solve)                                   \
  _(_lu_with_info)                              \
  _(geqrf)                                      \
  _(orgqr)                                      \
  _(ormqr)                                      \
  _(qr)                                         \
  _(svd)                                        \
  _(triangular_solve)                           \
  _(linalg_cholesky)                            \
  _(linalg_cholesky_ex)                         \
  _(linalg_cond)                                \
  _(linalg_cond, p_str)                         \
  _(linalg_eig)                                 \
  _(linalg_eigh)                                \
  _(linalg_eigvals)                             \
  _(linalg_eigvalsh)                            \
  _(linalg_householder_product)                 \
  _(linalg_inv)                                 \
  _(linalg_inv_ex)                              \
  _(linalg_lstsq)                               \
  _(linalg_matrix_rank)                         \
  _(linalg_matrix_rank, tol_tensor)             \
  _(linalg_matrix_rank, atol_rtol_tensor)       \
  _(linalg_matrix_rank, atol_rtol_float)        \
  _(linalg_qr)                                  \
  _(linalg_solve)                               \
  _(linalg_svd)                                 \
  _(linalg_svdvals)                             \
  _(linalg_tensorinv)                           \
  _(linalg_tensorsolve)                         \
  _(fft_fft)                                    \
  _(fft_ifft)                                   \
  _(fft_fft2)                                   \
  _(fft_ifft2)                                  \
  _(fft_fftn)                                   \
  _(fft_ifftn)                                  \
  _(fft_rfft)                                   \
  _(fft_irfft)                                  \
  _(fft_rfft2)                                  \
  _(fft_irfft2)                                 \
  _(fft_rfftn)                                  \
  _(fft_irfftn)                                 \
  _(fft_hfft)                                   \
  _(fft_ihfft)                                  \
  _(stft)                                       \
  _(stft, center)                               \
  _(quantile)                                   \
  _(quantile, scalar)                           \
  _(nanquantile)                                \
  _(nanquantile, scalar)                        \
  _(polar)                                      \
  _(view_as_complex)

using namespace at;  // PyTorch's list spells its signatures for code inside this namespace

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(NEURON_LOWER_PRECISION)
  AT_FORALL_FP32(NEURON_FP32)
  NEURON_FORALL_WITHOUT_NARROW_KERNELS(NEURON_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(NEURON_FP32_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(NEURON_PROMOTE)
  m.impl("aten::binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace

}  // namespace neuron

// Scaled dot product attention on the device.
//
// Note [Attention]
// `scaled_dot_product_attention` asks a stub which kernel to use. Ours decides as the CPU's does, from metadata and torch.backends'
// switches alone: flash attention (_scaled_dot_product_flash_attention_for_cpu and its backward, ordinary ops of the front end) where the
// CPU would use it, the math composite otherwise, so also with dropout, whose words then come from the device's generator. The
// *_overrideable pair, which a compiled or hand-written program may name, is the same flash kernel behind CUDA's signature.
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace neuron {
namespace {

using at::Tensor;

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout_p,
               bool is_causal, std::optional<double> scale, bool enable_gqa) {
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
}

void check_dropout(double dropout_p) {
  TORCH_CHECK(
      dropout_p == 0, "_scaled_dot_product_fused_attention_overrideable: got dropout_p=", dropout_p,
      ", but the fused kernel has no dropout (dropout_p=0 only). Call torch.nn.functional.scaled_dot_product_attention, which takes "
      "the math kernel then.");
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

/// Sequence offsets, Philox state and debug mask stay undefined: the inputs are dense and there is no dropout.
Forward overrideable(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias, double dropout_p,
                     bool is_causal, bool /*return_debug_mask*/, std::optional<double> scale) {
  check_dropout(dropout_p);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, is_causal, bias, scale);
  return {output, logsumexp, Tensor(), Tensor(), query.sym_size(2), key.sym_size(2), Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> overrideable_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                                 const Tensor& value, const Tensor& bias, std::array<bool, 4> wanted,
                                                                 const Tensor& out, const Tensor& logsumexp, const Tensor& /*cum_seq_q*/,
                                                                 const Tensor& /*cum_seq_k*/, int64_t /*max_q*/, int64_t /*max_k*/,
                                                                 double dropout_p, bool is_causal, const Tensor& /*philox_seed*/,
                                                                 const Tensor& /*philox_offset*/, std::optional<double> scale) {
  check_dropout(dropout_p);
  TORCH_CHECK(!(wanted[3] && bias.defined()),
              "_scaled_dot_product_fused_attention_overrideable_backward: the fused kernel gives no gradient of "
              "attn_bias. Call torch.nn.functional.scaled_dot_product_attention, which takes the math kernel when the mask requires grad.");
  const auto mask = bias.defined() ? std::optional<Tensor>(bias) : std::nullopt;
  auto [dq, dk, dv] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, out, logsumexp, 0, is_causal, mask, scale);
  return {wanted[0] ? dq : Tensor(), wanted[1] ? dk : Tensor(), wanted[2] ? dv : Tensor(), Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(choose));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(overrideable));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(overrideable_backward));
}

}  // namespace neuron

// The macro names the stub without a namespace.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &neuron::choose)
}  // namespace at::native

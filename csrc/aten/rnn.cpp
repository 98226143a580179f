// The fused recurrent cells. PyTorch's RNN code takes them on every accelerator, and the CPU has no kernels for them.
//
// The workspace holds the activated gates, as on CUDA: 4 (LSTM: i, f, g, o) or 5 (GRU: r, z, n, h, W_hn h + b_hn) chunks of hidden_size.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace neuron {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const MaybeTensor& bias) { return bias && bias->defined() ? at::add(gates, *bias) : gates; }

bool given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const MaybeTensor& input_bias,
                                                         const MaybeTensor& hidden_bias) {
  auto gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  auto raw = gates.chunk(4, 1);
  auto in = raw[0].sigmoid(), forget = raw[1].sigmoid(), cell = raw[2].tanh(), out = raw[3].sigmoid();
  auto cy = forget * cx + in * cell;
  auto hy = out * cy.tanh();
  return {hy, cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                                  const at::Tensor& cx, const at::Tensor& cy, const at::Tensor& workspace,
                                                                  bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  auto activated = workspace.chunk(4, 1);
  const auto &in = activated[0], &forget = activated[1], &cell = activated[2], &out = activated[3];
  auto tanh_cy = cy.tanh();
  at::Tensor grad_cell = given(grad_cy) ? *grad_cy : at::zeros_like(cy);
  at::Tensor grad_out = at::zeros_like(out);
  if (given(grad_hy)) {
    grad_cell = grad_cell + at::tanh_backward(*grad_hy * out, tanh_cy);
    grad_out = at::sigmoid_backward(*grad_hy * tanh_cy, out);
  }
  auto grad_gates = at::cat({at::sigmoid_backward(grad_cell * cell, in), at::sigmoid_backward(grad_cell * cx, forget),
                             at::tanh_backward(grad_cell * in, cell), grad_out},
                            1);
  return {grad_gates, grad_cell * forget, has_bias ? grad_gates.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hx,
                                            const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  auto reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
  auto fresh = (input[2] + reset * hidden[2]).tanh();
  auto hy = (hx - fresh) * update + fresh;
  return {hy, at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& grad_hy,
                                                                                         const at::Tensor& workspace, bool has_bias) {
  auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden = saved[4];
  auto grad_fresh = at::tanh_backward(grad_hy * (1 - update), fresh);
  auto grad_update = at::sigmoid_backward(grad_hy * (hx - fresh), update);
  auto grad_reset = at::sigmoid_backward(grad_fresh * hidden, reset);
  auto grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  auto grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  auto bias_of = [&](const at::Tensor& gates) { return has_bias ? gates.sum(0) : at::Tensor(); };
  return {grad_input, grad_hidden, grad_hy * update, bias_of(grad_input), bias_of(grad_hidden)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace neuron

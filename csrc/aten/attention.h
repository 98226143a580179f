// Scaled dot product attention on the device.
//
// Note [Attention]
// `scaled_dot_product_attention` asks a stub which kernel to use. Ours decides as the CPU's does, from metadata and torch.backends'
// switches alone: flash attention (_scaled_dot_product_flash_attention_for_cpu and its backward, ordinary ops of the front end) where the
// CPU would use it, the math composite otherwise, so also with dropout, whose words then come from the device's generator. The
// *_overrideable pair, which a compiled or hand-written program may name, is the same flash kernel behind CUDA's signature.
#pragma once

#include <set>
#include <string>

namespace neuron {

/// The overloads that attention.cpp registers on PrivateUse1; the front end leaves these alone.
const std::set<std::string>& attention_ops();

}  // namespace neuron

// Running operators along the rows of a tile, as the Vector engine's scans do them: in order, in float32.
#pragma once

#include <string>

namespace at {
class Tensor;
}

namespace neuron::nki {

/// out[p, i] = (data0[p, i] op0 r) op1 data1[p, i], where r is out[p, i - 1], or initial[p] at first. All are float32, dense, [P, N] and
/// [P]. The operators are add, subtract, multiply, maximum, minimum and bypass (the first operand); reversed ones swap their operands.
/// Operand `data1` is not read when op1 is bypass.
void scan(const at::Tensor& out, const at::Tensor& data0, const at::Tensor& data1, const at::Tensor& initial, const std::string& op0,
          const std::string& op1, bool reverse0, bool reverse1);

}  // namespace neuron::nki

#include "csrc/nki/scan.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>

namespace neuron::nki {

namespace {

// NaN wins, as in PyTorch's maximum and minimum.
float maximum(float a, float b) { return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : a > b ? a : b; }
float minimum(float a, float b) { return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : a < b ? a : b; }

/// Calls `use` with the operator as a function object, so that loops are compiled for each.
template <typename Use>
void with_operator(const std::string& name, bool reversed, Use use) {
  if (name == "add") return use([](float a, float b) { return a + b; });
  if (name == "multiply") return use([](float a, float b) { return a * b; });
  if (name == "maximum") return use([](float a, float b) { return maximum(a, b); });
  if (name == "minimum") return use([](float a, float b) { return minimum(a, b); });
  if (name == "subtract" && reversed) return use([](float a, float b) { return b - a; });
  if (name == "subtract") return use([](float a, float b) { return a - b; });
  if (name == "bypass") return use([](float a, float) { return a; });
  TORCH_CHECK(false, "scan: no operator ", name);
}

}  // namespace

void scan(const at::Tensor& out, const at::Tensor& data0, const at::Tensor& data1, const at::Tensor& initial, const std::string& op0,
          const std::string& op1, bool reverse0, bool reverse1) {
  TORCH_CHECK(out.dim() == 2 && out.is_contiguous() && data0.is_contiguous() && data1.is_contiguous() && initial.is_contiguous(),
              "scan: dense tiles");
  TORCH_CHECK(data0.sizes() == out.sizes() && data1.sizes() == out.sizes() && initial.numel() == out.size(0), "scan: shapes differ");
  const int64_t rows = out.size(0), columns = out.size(1);
  const float* a = data0.const_data_ptr<float>();
  const float* b = data1.const_data_ptr<float>();
  const float* first = initial.const_data_ptr<float>();
  float* result = out.mutable_data_ptr<float>();
  with_operator(op0, reverse0, [&](auto f) {
    with_operator(op1, reverse1, [&](auto g) {
      for (int64_t p = 0; p < rows; ++p) {
        float running = first[p];
        for (int64_t i = 0; i < columns; ++i) {
          running = g(f(a[p * columns + i], running), b[p * columns + i]);
          result[p * columns + i] = running;
        }
      }
    });
  });
}

}  // namespace neuron::nki

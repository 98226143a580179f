// The extension module torch_neuronx._C.
#include "csrc/python/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native half of torch_neuronx.";
}

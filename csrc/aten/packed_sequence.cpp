// pack_padded_sequence. PyTorch's composite gives batch_sizes on the CPU, where its users read them, and cuts the data with ordinary ops;
// the boxed kernel would put every result on the device.
#include <ATen/ops/_pack_padded_sequence_native.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_pack_padded_sequence", TORCH_FN(at::native::_pack_padded_sequence)); }

// Registration of the kernels for sparse, nested and quantized tensors.
#pragma once

namespace neuron {

/// Registers one boxed kernel under SparsePrivateUse1, SparseCsrPrivateUse1, NestedTensorPrivateUse1 and QuantizedPrivateUse1 for every
/// overload that the CPU has under the key of the same layout, and under PrivateUse1 for the overloads that make such tensors from dense
/// ones. Returns how many registrations.
int register_layouts();

}  // namespace neuron

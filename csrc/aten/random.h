// Random ops of the device: ATen's signatures and checks on PrivateUse1, over neuron::philox_* (random_kernels.cpp).
#pragma once

#include <set>
#include <string>

namespace neuron {

/// The overloads that random.cpp registers on PrivateUse1, "aten::normal_" or "aten::bernoulli_.float". The front end leaves these alone.
/// The other overloads tagged nondeterministic_seeded are composites of these (rand, randn_like, dropout...), and must stay so.
const std::set<std::string>& random_ops();

}  // namespace neuron

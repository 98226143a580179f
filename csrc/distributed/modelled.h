// What of a link or a host is modelled, not real.
#pragma once

#include <chrono>
#include <string>

namespace neuron::distributed {

struct Modelled {
  std::chrono::microseconds link{0};  ///< TORCH_NEURONX_EMULATED_LINK_US: time of each collective, on top of the real one
  std::string host;                   ///< TORCH_NEURONX_EMULATED_HOST: processes that name different ones count as on different hosts
};

/// Read once. Throws c10::Error for a value that is not understood.
const Modelled& modelled();

}  // namespace neuron::distributed

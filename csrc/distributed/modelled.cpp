#include "csrc/distributed/modelled.h"

#include <c10/util/Exception.h>

#include <cstdlib>

namespace neuron::distributed {

const Modelled& modelled() {
  static const auto* const values = [] {
    auto* read = new Modelled;
    if (const char* host = std::getenv("TORCH_NEURONX_EMULATED_HOST")) read->host = host;
    if (const char* text = std::getenv("TORCH_NEURONX_EMULATED_LINK_US"); text && *text) {
      char* end = nullptr;
      const long long us = std::strtoll(text, &end, 10);
      TORCH_CHECK(!*end && us >= 0 && us <= 60'000'000, "TORCH_NEURONX_EMULATED_LINK_US=\"", text,
                  "\" is not understood: accepted values are whole numbers from 0 to 60000000.");
      read->link = std::chrono::microseconds(us);
    }
    return read;
  }();
  return *values;
}

}  // namespace neuron::distributed

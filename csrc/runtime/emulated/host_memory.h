// How much memory the machine could give this process.
#pragma once

#include <cstdint>

namespace neuron::emulated {

struct HostMemory {
  int64_t total;           ///< of the machine, or the limit of the control group
  int64_t available;       ///< without swapping, page cache that can be dropped included
  const char* limited_by;  ///< "the machine" or "the memory limit of the control group"
};

/// Reads /proc/meminfo and the control groups (v1 or v2) of the process, some 50 us. Whichever allows least is reported.
HostMemory read_host_memory();

}  // namespace neuron::emulated

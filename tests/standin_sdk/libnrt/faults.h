// Faults on demand, by environment:
//
//   STANDIN_NRT_FAULTS="nrt_execute:3=1006;nrt_tensor_allocate:*=4;nrta_execute_schedule:1-5=7"
//       the n-th call (from 1) of a function, a range or every call gives this status; "=slow500" sleeps 500 ms first, "=stuck" never ends
//   STANDIN_NRT_COMPLETION_FAULTS  the same for how asynchronous requests end, by function
#pragma once

#include "tests/standin_sdk/libnrt/standin.h"

namespace standin {

/// Counts a call of `function`; gives the status that was asked for, NRT_SUCCESS when none was.
NRT_STATUS fault(const char* function);
NRT_STATUS completion_fault(const char* function);

}  // namespace standin

#define STANDIN_ENTER(function)                                                                                   \
  if (const auto injected = standin::fault(function); injected != neuron::trainium::NRT_SUCCESS) return injected; \
  if (const auto state = standin::ready(); state != neuron::trainium::NRT_SUCCESS) return state

// Which logical NeuronCores an emulated instance has. No torch, nothing is opened: device_count() is built on this.
#pragma once

#include <string>
#include <vector>

#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace neuron::emulated {

/// Accepted values of TORCH_NEURONX_EMULATED_INSTANCE.
std::vector<std::string> instance_names();

/// The logical cores that this process may use under `settings`. When there are none, returns an empty list and `problem` says why, with
/// the accepted range.
std::vector<DeviceInfo> devices_of(const Settings& settings, std::string* problem);

}  // namespace neuron::emulated

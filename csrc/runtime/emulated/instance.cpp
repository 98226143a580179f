#include "csrc/runtime/emulated/instance.h"

namespace neuron::emulated {
namespace {

struct Instance {
  const char* name;
  const char* generation;
  const char* chip_name;
  int chips;
  int cores_per_chip;  // physical
  int64_t hbm_per_chip;
};

constexpr int64_t kGiB = int64_t{1} << 30;

// Trainium3 is sold only as parts of UltraServers, without instance names of its own: "trn3" is one chip, the two others are one server
// of a Gen1 and of a Gen2 UltraServer.
constexpr Instance kInstances[] = {
    {"trn2.3xlarge", "trn2", "Trainium2", 1, 8, 96 * kGiB},     //
    {"trn2.48xlarge", "trn2", "Trainium2", 16, 8, 96 * kGiB},   //
    {"trn2u.48xlarge", "trn2", "Trainium2", 16, 8, 96 * kGiB},  //
    {"trn3", "trn3", "Trainium3", 1, 8, 144 * kGiB},            //
    {"trn3-gen1", "trn3", "Trainium3", 16, 8, 144 * kGiB},      //
    {"trn3-gen2", "trn3", "Trainium3", 4, 8, 144 * kGiB},       //
};

constexpr int kMostDevices = 127;  // c10::DeviceIndex is an int8_t

const Instance* find_instance(const std::string& name) {
  for (const auto& instance : kInstances)
    if (name == instance.name) return &instance;
  return nullptr;
}

/// Numbers of the logical cores that the settings select out of `available`.
std::vector<int> select_cores(const Settings& settings, int available, std::string* problem) {
  const std::string shape = settings.instance + " with NEURON_LOGICAL_NC_CONFIG=" + std::to_string(settings.lnc) +
                            " has the logical cores 0 to " + std::to_string(available - 1);
  std::vector<int> cores = settings.visible_cores;  // wins over NEURON_RT_NUM_CORES
  for (int core : cores) {
    if (core < available) continue;
    *problem = "NEURON_RT_VISIBLE_CORES asks for core " + std::to_string(core) + ", but " + shape + ".";
    return {};
  }
  if (settings.num_cores > available) {
    *problem = "NEURON_RT_NUM_CORES=" + std::to_string(settings.num_cores) + " is more than there are: " + shape +
               "; accepted values are 0 (all) to " + std::to_string(available) + ".";
    return {};
  }
  const int count = settings.num_cores ? settings.num_cores : available;
  for (int core = 0; settings.visible_cores.empty() && core < count; ++core) cores.push_back(core);
  if (cores.size() > kMostDevices) {
    *problem = shape + ", but PyTorch numbers at most " + std::to_string(kMostDevices) +
               " devices in a process: choose fewer with NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES.";
    return {};
  }
  return cores;
}

}  // namespace

std::vector<std::string> instance_names() {
  std::vector<std::string> names;
  for (const auto& instance : kInstances) names.emplace_back(instance.name);
  return names;
}

std::vector<DeviceInfo> devices_of(const Settings& settings, std::string* problem) {
  const Instance* instance = find_instance(settings.instance);
  if (!instance) {
    *problem = "There is no emulated instance \"" + settings.instance + "\".";
    return {};
  }
  const int per_chip = instance->cores_per_chip / settings.lnc;
  std::vector<DeviceInfo> devices;
  for (int core : select_cores(settings, instance->chips * per_chip, problem)) {
    DeviceInfo info;
    info.name = std::string(instance->chip_name) + " (emulated)";
    info.generation = instance->generation;
    info.instance = instance->name;
    info.chip = core / per_chip;
    info.physical_cores = settings.lnc;
    info.memory_bytes = instance->hbm_per_chip / per_chip;
    info.emulated = true;
    devices.push_back(info);
  }
  return devices;
}

}  // namespace neuron::emulated

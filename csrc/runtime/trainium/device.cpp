#include "csrc/runtime/trainium/device.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "csrc/runtime/trainium/stream.h"

namespace neuron::trainium {
namespace {

/// What a family of instances is made of. Numbers: docs of EC2 Trn2 and Trn3 (see docs/dev/trainium.md).
struct Generation {
  uint32_t first_family, last_family;
  const char* name;
  const char* chip;
  int64_t bank_bytes;
  int cores_per_chip;
};
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr Generation kGenerations[] = {
    {2, 3, "trn1", "Trainium1", 16 * kGiB, 2},
    {5, 13, "trn2", "Trainium2", 24 * kGiB, 8},
    {14, 15, "trn3", "Trainium3", 36 * kGiB, 8},
};

const Generation& generation_of(const nrt_instance_info_t& info) {
  for (const auto& generation : kGenerations) {
    if (generation.first_family <= info.family && info.family <= generation.last_family) return generation;
  }
  TORCH_CHECK(false, "The Neuron runtime reports instance family ", info.family,
              ", which is none of Trainium 1, 2 or 3. Set TORCH_NEURONX_TARGET=emulated to run on emulated NeuronCores.");
}

TrainiumTarget* opened = nullptr;

std::vector<void (*)()>& closers() {
  static auto* all = new std::vector<void (*)()>;
  return *all;
}

void close_target() {
  shutdown_trainium_streams();
  for (auto* fn : closers()) fn();
  nrt().nrt_close();
}

}  // namespace

TrainiumTarget::TrainiumTarget() {
  const Nrt& n = nrt();
  const NRT_STATUS started = n.nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "2.13", "");
  if (started != NRT_SUCCESS) {
    raise_status(started,
                 "starting the Neuron runtime. Another process may hold the cores (neuron-ls shows which; NEURON_RT_VISIBLE_CORES chooses "
                 "others), or the driver (aws-neuronx-dkms) is missing or too old");
  }
  nrt_instance_info_t instance{};
  check(n.nrt_get_instance_info(&instance, sizeof instance), "asking for the instance's kind");
  uint32_t count = 0;
  check(n.nrt_get_visible_vnc_count(&count), "counting the visible cores");
  const auto& generation = generation_of(instance);
  const int lnc = settings().lnc;
  for (uint32_t i = 0; i < count; ++i) {
    Core core;
    const int vnc = static_cast<int>(i);
    core.info.name = generation.chip;
    core.info.generation = generation.name;
    core.info.instance = std::string(instance.arch_name, strnlen(instance.arch_name, sizeof instance.arch_name));
    core.info.chip = vnc * lnc / generation.cores_per_chip;
    core.info.physical_cores = lnc;
    core.info.memory_bytes = generation.bank_bytes;
    core.info.emulated = false;
    if (const auto stats = memory_stats(vnc); stats && stats->bytes_limit)
      core.info.memory_bytes = static_cast<int64_t>(stats->bytes_limit);
    core.queues = open_async_core(vnc);
    core.memory = std::make_unique<TrainiumMemory>(vnc, core.info.memory_bytes, *core.queues);
    cores_.push_back(std::move(core));
  }
  std::atexit(close_target);
}

const TrainiumTarget::Core& TrainiumTarget::core(int index) const {
  TORCH_CHECK_INDEX(index >= 0 && index < device_count(), "There is no device neuron:", index, ": accepted indices are 0 to ",
                    device_count() - 1, " (NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES choose the cores that a process may use).");
  return cores_[index];
}

Stream* TrainiumTarget::new_stream(int device, int64_t id, int priority) {
  core(device);
  return new TrainiumStream(device, id, priority);  // never destroyed, as the contract says
}

void before_close(void (*fn)()) { closers().push_back(fn); }

bool is_present() {
  std::string why;
  return access("/dev/neuron0", F_OK) == 0 && open_nrt(&why) != nullptr;
}

int visible_cores() noexcept {
  try {
    std::string why;
    uint32_t count = 0;
    const Nrt* n = open_nrt(&why);
    return n && n->nrt_get_visible_vnc_count(&count) == NRT_SUCCESS ? static_cast<int>(count) : 0;
  } catch (const std::exception&) {
    return 0;  // opening the target says why
  }
}

std::unique_ptr<Target> open_target() {
  TORCH_CHECK(
      settings().compile == Compile::block || settings().fallback != Fallback::error,
      "TORCH_NEURONX_COMPILE=background runs programs on the host until they are compiled, and TORCH_NEURONX_FALLBACK=error forbids "
      "the host. Set TORCH_NEURONX_COMPILE=block to wait for the compiler, or TORCH_NEURONX_FALLBACK=warn or allow.");
  std::string why;
  TORCH_CHECK(open_nrt(&why) != nullptr,
              "TORCH_NEURONX_TARGET=trainium asks for a Trainium chip, but the Neuron runtime cannot be loaded (", why,
              "). Install aws-neuronx-runtime-lib and put its folder into LD_LIBRARY_PATH, or set TORCH_NEURONX_TARGET=emulated to run on "
              "emulated NeuronCores.");
  auto target = std::make_unique<TrainiumTarget>();
  opened = target.get();
  return target;
}

TrainiumTarget& opened_target() {
  TORCH_INTERNAL_ASSERT(opened != nullptr, "the Trainium target is not in use");
  return *opened;
}

}  // namespace neuron::trainium

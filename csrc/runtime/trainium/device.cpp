#include "csrc/runtime/trainium/device.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
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

/// A whole number in the environment; -1 when there is none.
int number_of(const char* name) {
  const char* text = std::getenv(name);
  if (!text || !*text) return -1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return *end || value < 0 || value > 1 << 16 ? -1 : static_cast<int>(value);
}

/// The core of this process's rank among `total`, see Note [One core for each rank]; -1: all that are visible.
int core_of_rank(int total) {
  const int rank = number_of("LOCAL_RANK");
  if (!settings().visible_cores.empty() || settings().num_cores > 0 || number_of("LOCAL_WORLD_SIZE") < 2) return -1;
  return rank < total ? rank : -1;  // with more ranks than cores, the process group says so
}

NRT_STATUS start_runtime(const Nrt& n, int core) {
  // Set for the call alone, which reads it: the processes that this one starts choose for themselves.
  constexpr const char* kVisible = "NEURON_RT_VISIBLE_CORES";
  if (core >= 0) setenv(kVisible, std::to_string(core).c_str(), 1);
  const NRT_STATUS started = n.nrt_init(NRT_FRAMEWORK_TYPE_PYTORCH, "2.13", "");
  if (core >= 0) unsetenv(kVisible);
  return started;
}

}  // namespace

TrainiumTarget::TrainiumTarget() {
  const Nrt& n = nrt();
  uint32_t count = 0;
  check(n.nrt_get_visible_vnc_count(&count), "counting the visible cores");
  const int own = core_of_rank(static_cast<int>(count));
  const NRT_STATUS started = start_runtime(n, own);
  if (started != NRT_SUCCESS) {
    raise_status(started,
                 "starting the Neuron runtime. Another process may hold the cores (neuron-ls shows which; NEURON_RT_VISIBLE_CORES chooses "
                 "others), or the driver (aws-neuronx-dkms) is missing or too old");
  }
  open_cores(own, static_cast<int>(count));
  std::atexit(close_target);
}

/// `own`: the one core that the process has taken; -1: all.
void TrainiumTarget::open_cores(int own, int total) {
  nrt_instance_info_t instance{};
  check(nrt().nrt_get_instance_info(&instance, sizeof instance), "asking for the instance's kind");
  const auto& generation = generation_of(instance);
  const int lnc = settings().lnc;
  std::vector<std::shared_ptr<AsyncCore>> queues;
  for (int vnc = 0; vnc < (own < 0 ? total : 1); ++vnc) queues.push_back(open_async_core(vnc));
  for (int index = 0; index < total; ++index) {
    Core core;
    core.vnc = own < 0 ? index : index == own ? 0 : -1;
    core.info.name = generation.chip;
    core.info.generation = generation.name;
    core.info.instance = std::string(instance.arch_name, strnlen(instance.arch_name, sizeof instance.arch_name));
    core.info.chip = index * lnc / generation.cores_per_chip;
    core.info.physical_cores = lnc;
    core.info.memory_bytes = generation.bank_bytes;
    core.info.emulated = false;
    if (const auto stats = memory_stats(std::max(core.vnc, 0)); stats && stats->bytes_limit)
      core.info.memory_bytes = static_cast<int64_t>(stats->bytes_limit);
    core.queues = queues[std::max(core.vnc, 0)];
    core.memory = std::make_unique<TrainiumMemory>(core.vnc, core.info.memory_bytes, *core.queues);
    cores_.push_back(std::move(core));
  }
}

int TrainiumTarget::vnc(int device) const {
  const int vnc = core(device).vnc;
  TORCH_CHECK_INDEX(vnc >= 0, "neuron:", device,
                    " is the NeuronCore of another rank: this process has that of its LOCAL_RANK, neuron:", number_of("LOCAL_RANK"),
                    ". Set NEURON_RT_VISIBLE_CORES for each process to choose other cores.");
  return vnc;
}

const TrainiumTarget::Core& TrainiumTarget::core(int index) const {
  TORCH_CHECK_INDEX(index >= 0 && index < device_count(), "There is no device neuron:", index, ": accepted indices are 0 to ",
                    device_count() - 1, " (NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES choose the cores that a process may use).");
  return cores_[index];
}

Stream* TrainiumTarget::new_stream(int device, int64_t id, int priority) {
  vnc(device);
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

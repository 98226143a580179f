#include "csrc/runtime/trainium/nrt.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <memory>
#include <mutex>

namespace neuron::trainium {
namespace {

struct StatusRow {
  NRT_STATUS status;
  const char* name;
  const char* advice;
};

constexpr const char* kRestart = "The core is lost to this process: start it again.";
constexpr StatusRow kStatuses[] = {
    {NRT_SUCCESS, "NRT_SUCCESS", ""},
    {NRT_FAILURE, "NRT_FAILURE",
     "The runtime's log (NEURON_RT_LOG_LEVEL=INFO) has the cause; a NEFF made for another target gives this too."},
    {NRT_INVALID, "NRT_INVALID", "The runtime refused an argument or the NEFF."},
    {NRT_INVALID_HANDLE, "NRT_INVALID_HANDLE", "A handle of the runtime was used after its end: please report it."},
    {NRT_RESOURCE, "NRT_RESOURCE", "Free device memory: delete tensors, torch.neuron.empty_cache(), or use a smaller batch."},
    {NRT_TIMEOUT, "NRT_TIMEOUT", "The execution hangs, or takes longer than NEURON_RT_EXEC_TIMEOUT (seconds) allows."},
    {NRT_HW_ERROR, "NRT_HW_ERROR", "The hardware reported an error; see dmesg for NEURON_HW_ERR."},
    {NRT_QUEUE_FULL, "NRT_QUEUE_FULL", "The core's queue stayed full."},
    {NRT_LOAD_NOT_ENOUGH_NC, "NRT_LOAD_NOT_ENOUGH_NC", "The NEFF needs more cores than are visible: see NEURON_RT_VISIBLE_CORES."},
    {NRT_UNSUPPORTED_NEFF_VERSION, "NRT_UNSUPPORTED_NEFF_VERSION",
     "neuronx-cc is newer than this runtime: install versions of one SDK release."},
    {NRT_FAIL_HOST_MEM_ALLOC, "NRT_FAIL_HOST_MEM_ALLOC", "The host is out of memory."},
    {NRT_UNINITIALIZED, "NRT_UNINITIALIZED", "The runtime has not been initialised: please report it."},
    {NRT_CLOSED, "NRT_CLOSED", "The runtime has been closed: the process is ending."},
    {NRT_QUEUE_EMPTY, "NRT_QUEUE_EMPTY", "There is nothing to read."},
    {NRT_EXEC_UNIT_UNRECOVERABLE, "NRT_EXEC_UNIT_UNRECOVERABLE", kRestart},
    {NRT_EXEC_BAD_INPUT, "NRT_EXEC_BAD_INPUT", "The tensors do not fit the NEFF's inputs: please report it."},
    {NRT_EXEC_COMPLETED_WITH_NUM_ERR, "NRT_EXEC_COMPLETED_WITH_NUM_ERR",
     "The results hold NaN, and NEURON_FAIL_ON_NAN or NEURON_RT_NUMERICAL_ERRORS_VERBOSITY=critical makes that an error."},
    {NRT_EXEC_COMPLETED_WITH_ERR, "NRT_EXEC_COMPLETED_WITH_ERR", "The execution ended with an error; the runtime's log has the cause."},
    {NRT_EXEC_NC_BUSY, "NRT_EXEC_NC_BUSY", "Another model or process holds the core."},
    {NRT_EXEC_OOB, "NRT_EXEC_OOB", "An index is out of range (indirect copy or embedding)."},
    {NRT_COLL_PENDING, "NRT_COLL_PENDING", "A collective is still pending."},
    {NRT_EXEC_HW_ERR_COLLECTIVES, "NRT_EXEC_HW_ERR_COLLECTIVES", "A collective hangs: look for an earlier error on another rank."},
    {NRT_EXEC_HW_ERR_HBM_UE, "NRT_EXEC_HW_ERR_HBM_UE", "Uncorrectable HBM error: replace the instance."},
    {NRT_EXEC_HW_ERR_NC_UE, "NRT_EXEC_HW_ERR_NC_UE", "Parity error in on-chip memory: replace the instance if it comes back."},
    {NRT_EXEC_HW_ERR_DMA_ABORT, "NRT_EXEC_HW_ERR_DMA_ABORT", "A DMA engine stopped: see dmesg."},
    {NRT_EXEC_SW_NQ_OVERFLOW, "NRT_EXEC_SW_NQ_OVERFLOW", "The notification queue overflowed: unset NEURON_RT_ENABLE_DGE_NOTIFICATIONS."},
    {NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE, "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE", "Uncorrectable HBM error: reload the Neuron driver."},
    {NRT_NETWORK_PROXY_FAILURE, "NRT_NETWORK_PROXY_FAILURE", "The EFA proxy failed: see the runtime's log."},
};

const StatusRow* find_row(NRT_STATUS status) {
  for (const auto& row : kStatuses) {
    if (row.status == status) return &row;
  }
  return nullptr;
}

/// The same names take other arguments in the two forms, and the wrong one corrupts memory: version and symbols must agree.
AsyncForm async_form(const Nrt& nrt) {
  if (!nrt.symbol("nrta_execute_schedule")) return AsyncForm::none;
  const bool tracker = nrt.symbol("nrta_error_tracker_create") != nullptr;
  const bool events = nrt.symbol("nrta_event_register_seq_id_completion") != nullptr;
  if (nrt.minor == 30 && tracker && !events) return AsyncForm::tracker;
  if (nrt.minor == 31 && !tracker) return AsyncForm::status;
  if (nrt.minor >= 32 && !tracker && events) return AsyncForm::status;
  return AsyncForm::none;
}

const Nrt* opened = nullptr;

void fill(Nrt& nrt) {
  std::string missing;
#define NEURON_RESOLVE(result, name, parameters) \
  nrt.find(#name, nrt.name);                     \
  if (!nrt.name) missing += missing.empty() ? #name : ", " #name;
  NEURON_NRT_FUNCTIONS(NEURON_RESOLVE)
#undef NEURON_RESOLVE
#define NEURON_RESOLVE(result, name, parameters) nrt.find(#name, nrt.name);
  NEURON_NRT_OPTIONAL_FUNCTIONS(NEURON_RESOLVE)
#undef NEURON_RESOLVE
  TORCH_CHECK(missing.empty(), nrt.path, " is not a Neuron runtime that can be used here: it lacks ", missing,
              ". Install aws-neuronx-runtime-lib of SDK 2.28 or later, or set TORCH_NEURONX_TARGET=emulated.");
  nrt_version_t version{};
  check(nrt.nrt_get_version(&version, sizeof version), "asking for the runtime's version");
  nrt.minor = version.rt_minor;
  nrt.async = async_form(nrt);
}

}  // namespace

void* Nrt::symbol(const char* name) const { return dlsym(handle, name); }

const Nrt* open_nrt(std::string* why) {
  static auto* const mutex = new std::mutex;
  std::lock_guard lock(*mutex);
  if (opened) return opened;
  why->clear();
  for (const char* path : {"/opt/aws/neuron/lib/libnrt.so.1", "libnrt.so.1"}) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* error = dlerror();
      *why += (why->empty() ? "" : "; ") + std::string(error ? error : path);
      continue;
    }
    auto found = std::make_unique<Nrt>();
    found->handle = handle;
    found->path = path;
    fill(*found);
    return opened = found.release();  // stays open: threads of the library run until the process ends
  }
  return nullptr;
}

const Nrt& nrt() {
  TORCH_INTERNAL_ASSERT(opened != nullptr, "libnrt is used before it was opened");
  return *opened;
}

std::optional<nrt_vnc_memory_stats_t> memory_stats(int vnc) {
  nrt_vnc_memory_stats_t stats{};
  size_t written = 0;
  const auto ask = nrt().nrt_get_vnc_memory_stats;
  if (!ask || ask(static_cast<uint32_t>(vnc), &stats, sizeof stats, &written) != NRT_SUCCESS || written < sizeof stats) return {};
  return stats;
}

std::string status_name(NRT_STATUS status) {
  const auto* row = find_row(status);
  return row ? row->name : c10::str("NRT status ", static_cast<int>(status));
}

bool is_terminal(NRT_STATUS status) { return status == NRT_EXEC_UNIT_UNRECOVERABLE; }

void raise_status(NRT_STATUS status, const std::string& attempted) {
  const auto* row = find_row(status);
  auto message = c10::str("NRT Error ", status_name(status), "(", static_cast<int>(status), "): ", attempted, ". ",
                          row ? row->advice : "This status is not documented: see the runtime's log.");
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (status) {
    case NRT_RESOURCE:
      throw c10::OutOfMemoryError(here, std::move(message));
    case NRT_EXEC_OOB:
      throw c10::IndexError(here, std::move(message));
    case NRT_EXEC_UNIT_UNRECOVERABLE:
    case NRT_HW_ERROR:
    case NRT_EXEC_HW_ERR_COLLECTIVES:
    case NRT_EXEC_HW_ERR_HBM_UE:
    case NRT_EXEC_HW_ERR_NC_UE:
    case NRT_EXEC_HW_ERR_DMA_ABORT:
    case NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE:
      throw c10::AcceleratorError(here, static_cast<int32_t>(status), std::move(message));
    default:
      throw c10::Error(here, std::move(message));
  }
}

}  // namespace neuron::trainium

// Lifecycle, topology, ownership of cores.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/standin_sdk/libnrt/faults.h"

#ifndef STANDIN_MINOR
#define STANDIN_MINOR 34
#endif

namespace standin {
namespace {

/// STANDIN_NRT_DEVICE = trn2 (default) | trn3.
bool is_trn3() {
  const char* device = getenv("STANDIN_NRT_DEVICE");
  return device && strcmp(device, "trn3") == 0;
}

int logical_size() {
  const int64_t lnc = number_from_environment("NEURON_LOGICAL_NC_CONFIG", number_from_environment("NEURON_RT_VIRTUAL_CORE_SIZE", 2));
  return lnc == 1 ? 1 : 2;
}

/// One chip: 8 physical cores.
int total_cores() { return 8 / logical_size(); }

/// The cores that the environment selects, contiguous and increasing as the documentation demands; empty when it asks for what is not
/// there.
std::vector<int> visible_cores() {
  std::vector<int> cores;
  const char* text = getenv("NEURON_RT_VISIBLE_CORES");
  if (text && *text) {
    const std::string s = text;
    size_t at = 0;
    while (at < s.size()) {
      char* end;
      const long first = strtol(s.c_str() + at, &end, 10);
      long last = first;
      if (*end == '-') last = strtol(end + 1, &end, 10);
      for (long core = first; core <= last; ++core) cores.push_back(static_cast<int>(core));
      at = static_cast<size_t>(end - s.c_str()) + 1;
    }
  } else {
    const int64_t count = number_from_environment("NEURON_RT_NUM_CORES", 0);
    for (int core = 0; core < (count ? count : total_cores()); ++core) cores.push_back(core);
  }
  for (size_t i = 0; i < cores.size(); ++i) {
    if (cores[i] >= total_cores() || (i > 0 && cores[i] != cores[i - 1] + 1)) return {};
  }
  return cores;
}

std::string lock_folder() {
  const char* folder = getenv("STANDIN_NRT_DIR");
  std::string path = folder ? folder : "/tmp/standin-nrt-" + std::to_string(getuid());
  mkdir(path.c_str(), 0700);
  return path;
}

/// Locks a core for this process; the lock ends with the process. -1 when another has it.
int take_core(int core) {
  const std::string path = lock_folder() + "/core" + std::to_string(core);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

Runtime& runtime() {
  static auto* const one = new Runtime;
  return *one;
}

NRT_STATUS ready() {
  switch (runtime().state) {
    case Runtime::State::fresh:
      return NRT_UNINITIALIZED;
    case Runtime::State::closed:
      return NRT_CLOSED;
    case Runtime::State::ready:
      return NRT_SUCCESS;
  }
  return NRT_FAILURE;
}

void log_error(const char* function, const std::string& text) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm local;
  localtime_r(&now.tv_sec, &local);
  char date[32];
  strftime(date, sizeof date, "%Y-%b-%d %H:%M:%S", &local);
  fprintf(stderr, "%s.%06ld %d:%d ERROR  NRT:%-41s %s\n", date, now.tv_nsec / 1000, getpid(), gettid(), function, text.c_str());
}

int64_t number_from_environment(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoll(text, nullptr, 10) : otherwise;
}

}  // namespace standin

using namespace standin;

STANDIN_EXPORT NRT_STATUS nrt_init(nrt_framework_type_t, const char*, const char*) {
  if (const auto injected = fault("nrt_init"); injected != NRT_SUCCESS) return injected;
  auto& r = runtime();
  std::lock_guard lock(r.mutex);
  if (r.state == Runtime::State::ready) return NRT_SUCCESS;
  const auto wanted = visible_cores();
  if (wanted.empty()) {
    log_error("nrt_allocate_neuron_cores", "the requested cores are not on this instance, or not contiguous");
    return NRT_INVALID;
  }
  // LNC 2: a logical core has a bank of its own; LNC 1: two share one.
  const int64_t bank = (is_trn3() ? int64_t{36} : int64_t{24}) << 30;
  const auto limit = static_cast<size_t>(number_from_environment("STANDIN_NRT_HBM_BYTES", bank * logical_size() / 2));
  for (int core : wanted) {
    auto made = std::make_unique<Core>();
    made->vnc = static_cast<int>(r.cores.size());
    made->limit = limit;
    made->lock_fd = take_core(core);
    if (made->lock_fd < 0) {
      log_error("nrt_allocate_neuron_cores", "NeuronCore(s) not available - Requested:nc" + std::to_string(wanted.front()) + "-nc" +
                                                 std::to_string(wanted.back()) + " Available:0");
      for (auto& taken : r.cores) close(taken->lock_fd);
      r.cores.clear();
      return NRT_FAILURE;
    }
    r.cores.push_back(std::move(made));
  }
  r.state = Runtime::State::ready;
  return NRT_SUCCESS;
}

STANDIN_EXPORT void nrt_close() {
  auto& r = runtime();
  std::lock_guard lock(r.mutex);
  if (r.state != Runtime::State::ready) return;
  for (auto& core : r.cores) {
    core->executor.reset();
    close(core->lock_fd);
  }
  r.cores.clear();
  r.state = Runtime::State::closed;
}

STANDIN_EXPORT NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size) {
  nrt_version_t full{};
  full.rt_major = 2;
  full.rt_minor = static_cast<uint64_t>(number_from_environment("STANDIN_NRT_MINOR", STANDIN_MINOR));
  strcpy(full.rt_detail, "stand-in for tests");
  memcpy(version, &full, std::min(size, sizeof full));
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t size) {
  STANDIN_ENTER("nrt_get_instance_info");
  nrt_instance_info_t full{};
  full.family = is_trn3() ? 14 : 5;
  full.size = is_trn3() ? 9 : 8;
  strcpy(full.arch_name, is_trn3() ? "trn3" : "trn2.3xlarge");
  memcpy(info, &full, std::min(size, sizeof full));
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_get_total_vnc_count(uint32_t* count) {
  *count = static_cast<uint32_t>(total_cores());
  return NRT_SUCCESS;
}
STANDIN_EXPORT NRT_STATUS nrt_get_total_nc_count(uint32_t* count) { return nrt_get_total_vnc_count(count); }
STANDIN_EXPORT NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count) {
  *count = static_cast<uint32_t>(visible_cores().size());
  return NRT_SUCCESS;
}
STANDIN_EXPORT NRT_STATUS nrt_get_visible_nc_count(uint32_t* count) { return nrt_get_visible_vnc_count(count); }

STANDIN_EXPORT NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t size, size_t* written) {
  STANDIN_ENTER("nrt_get_vnc_memory_stats");
  auto& r = runtime();
  std::lock_guard lock(r.mutex);
  if (vnc >= r.cores.size()) return NRT_INVALID;
  const nrt_vnc_memory_stats_t full{r.cores[vnc]->used, r.cores[vnc]->limit};
  *written = std::min(size, sizeof full);
  memcpy(stats, &full, *written);
  return NRT_SUCCESS;
}

STANDIN_EXPORT const char* nrt_get_status_as_str(NRT_STATUS status) {
  switch (status) {
#define STANDIN_NAME(name) \
  case name:               \
    return #name;
    STANDIN_NAME(NRT_SUCCESS)
    STANDIN_NAME(NRT_FAILURE)
    STANDIN_NAME(NRT_INVALID)
    STANDIN_NAME(NRT_INVALID_HANDLE)
    STANDIN_NAME(NRT_RESOURCE)
    STANDIN_NAME(NRT_TIMEOUT)
    STANDIN_NAME(NRT_HW_ERROR)
    STANDIN_NAME(NRT_QUEUE_FULL)
    STANDIN_NAME(NRT_LOAD_NOT_ENOUGH_NC)
    STANDIN_NAME(NRT_UNSUPPORTED_NEFF_VERSION)
    STANDIN_NAME(NRT_FAIL_HOST_MEM_ALLOC)
    STANDIN_NAME(NRT_UNINITIALIZED)
    STANDIN_NAME(NRT_CLOSED)
    STANDIN_NAME(NRT_QUEUE_EMPTY)
    STANDIN_NAME(NRT_EXEC_UNIT_UNRECOVERABLE)
    STANDIN_NAME(NRT_EXEC_BAD_INPUT)
    STANDIN_NAME(NRT_EXEC_COMPLETED_WITH_NUM_ERR)
    STANDIN_NAME(NRT_EXEC_COMPLETED_WITH_ERR)
    STANDIN_NAME(NRT_EXEC_NC_BUSY)
    STANDIN_NAME(NRT_EXEC_OOB)
    STANDIN_NAME(NRT_COLL_PENDING)
    STANDIN_NAME(NRT_EXEC_HW_ERR_COLLECTIVES)
    STANDIN_NAME(NRT_EXEC_HW_ERR_HBM_UE)
    STANDIN_NAME(NRT_EXEC_HW_ERR_NC_UE)
    STANDIN_NAME(NRT_EXEC_HW_ERR_DMA_ABORT)
    STANDIN_NAME(NRT_EXEC_SW_NQ_OVERFLOW)
    STANDIN_NAME(NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE)
    STANDIN_NAME(NRT_NETWORK_PROXY_FAILURE)
#undef STANDIN_NAME
  }
  return "UNKNOWN";
}

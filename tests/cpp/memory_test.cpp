// Settings, emulated devices, their memory and its limits, workspaces.
#include "csrc/runtime/emulated/memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "csrc/runtime/emulated/host_memory.h"
#include "csrc/runtime/emulated/instance.h"
#include "csrc/runtime/emulated/workspace.h"
#include "csrc/runtime/large_copy.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/size_class.h"
#include "tests/cpp/check.h"

using namespace neuron;
using namespace neuron::emulated;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// The settings under one environment variable.
Settings settings_with(const char* name, const char* value) {
  const char* before = std::getenv(name);
  const std::string kept = before ? before : "";
  setenv(name, value, 1);
  Settings result = parse_settings();
  before ? setenv(name, kept.c_str(), 1) : unsetenv(name);
  return result;
}

bool mentions(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) == std::string::npos) return false;
  return true;
}

EmulatedMemory make_memory(int64_t bytes, HostLimits limits = {}, bool guard = false) {
  return {std::make_shared<AddressSpace>(1, bytes, guard), std::make_shared<HostBudget>(limits), 0, bytes};
}

/// What allocate() throws.
OutOfMemory failure(Memory& memory, size_t bytes) {
  try {
    memory.allocate(bytes);
  } catch (const OutOfMemory& error) {
    return error;
  }
  check::fail(__FILE__, __LINE__, "allocate() succeeds");
}

/// Signal that kills a child which runs `body`; 0 when it ends by itself.
template <class F>
int signal_of(F body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);  // a sanitizer turns the signal into an exit code
}

int64_t resident_bytes() {
  long pages = 0, resident = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * int64_t{4096};
}

}  // namespace

// ---- Settings -----------------------------------------------------------------------------------------------------------

TEST(settings_understand_the_documented_spellings) {
  CHECK(settings_with("TORCH_NEURONX_GUARD", "1").guard);
  CHECK(settings_with("TORCH_NEURONX_GUARD", "True").guard);
  CHECK(!settings_with("TORCH_NEURONX_GUARD", "off").guard);
  CHECK(!settings_with("TORCH_NEURONX_GUARD", "").guard);
  CHECK(settings_with("TORCH_NEURONX_FALLBACK", "error").fallback == Fallback::error);
  CHECK_EQ(settings_with("TORCH_NEURONX_HOST_MEMORY_LIMIT", "512M").host_memory_limit, 512 * kMiB);
  CHECK_EQ(settings_with("TORCH_NEURONX_HOST_MEMORY_LIMIT", "2GiB").host_memory_limit, 2048 * kMiB);
  CHECK_EQ(settings_with("TORCH_NEURONX_HOST_MEMORY_LIMIT", "4096").host_memory_limit, 4096);
  CHECK(settings_with("NEURON_RT_VISIBLE_CORES", "0-1,3").visible_cores == std::vector<int>({0, 1, 3}));
  CHECK(settings_with("NEURON_RT_VISIBLE_CORES", "2").visible_cores == std::vector<int>({2}));
  CHECK_EQ(settings_with("NEURON_EAGER_MODEL_CACHE_SIZE", "7").cache_entries, 7);
  const auto config =
      settings_with("TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG", "kMaxSplitSizeBytes=268435456,kMaxNonSplitRoundingBytes=67108864");
  CHECK_EQ(config.max_split_bytes, 256 * kMiB);
  CHECK_EQ(config.max_non_split_rounding_bytes, 64 * kMiB);
  CHECK(config.problem.empty());
}

TEST(settings_name_what_they_refuse_and_what_they_accept) {
  const auto problem = [](const char* name, const char* value) { return settings_with(name, value).problem; };
  CHECK(mentions(problem("TORCH_NEURONX_TARGET", "gpu"), {"TORCH_NEURONX_TARGET", "\"gpu\"", "auto, emulated, trainium"}));
  CHECK(mentions(problem("TORCH_NEURONX_EMULATED_INSTANCE", "trn9"), {"\"trn9\"", "trn2.3xlarge", "trn2.48xlarge", "trn3"}));
  CHECK(mentions(problem("TORCH_NEURONX_FALLBACK", "Warn"), {"error, warn, allow"}));
  CHECK(mentions(problem("TORCH_NEURONX_GUARD", "2"), {"TORCH_NEURONX_GUARD", "true"}));
  CHECK(mentions(problem("NEURON_LOGICAL_NC_CONFIG", "3"), {"from 1 to 2"}));
  for (const char* bad : {"a", "1-", "-1", "3-1", "0,0", "0,", ",0", "0-1-2", "99999999999999999999"})
    CHECK(mentions(problem("NEURON_RT_VISIBLE_CORES", bad), {bad, "0-3"}));
  for (const char* bad : {"1X", "M", "-5", "1.5G", "9999999T", "99999999999999999999"})
    CHECK(mentions(problem("TORCH_NEURONX_HOST_MEMORY_LIMIT", bad), {bad, "512M"}));
  for (const char* bad : {"kMaxSplitSizeBytes", "kMaxSplitSizeBytes=", "kMaxSplitSizeBytes=5", "kOther=1", "kMaxSplitSizeBytes=2097152,"})
    CHECK(mentions(problem("TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG", bad), {bad, "kMaxNonSplitRoundingBytes"}));
}

TEST(settings_refuse_cores_that_the_instance_lacks) {
  CHECK(mentions(settings_with("NEURON_RT_VISIBLE_CORES", "2-9").problem, {"core 4", "trn2.3xlarge", "0 to 3"}));
  CHECK(mentions(settings_with("NEURON_RT_NUM_CORES", "5").problem, {"NEURON_RT_NUM_CORES=5", "0 to 3"}));
}

// ---- Devices ------------------------------------------------------------------------------------------------------------

TEST(instances_have_the_cores_and_memory_of_the_hardware) {
  Settings settings;
  std::string problem;
  auto devices = devices_of(settings, &problem);
  CHECK_EQ(devices.size(), 4u);
  CHECK_EQ(devices[0].name, "Trainium2 (emulated)");
  CHECK_EQ(devices[0].memory_bytes, 24 * 1024 * kMiB);
  CHECK_EQ(devices[0].physical_cores, 2);

  settings.lnc = 1;
  devices = devices_of(settings, &problem);
  CHECK_EQ(devices.size(), 8u);
  CHECK_EQ(devices[0].memory_bytes, 12 * 1024 * kMiB);

  settings = Settings();
  settings.instance = "trn2.48xlarge";
  devices = devices_of(settings, &problem);
  CHECK_EQ(devices.size(), 64u);
  CHECK_EQ(devices[63].chip, 15);
  CHECK(problem.empty());

  settings.lnc = 1;  // 128 logical cores: one more than PyTorch can number
  CHECK(devices_of(settings, &problem).empty());
  CHECK(mentions(problem, {"127", "NEURON_RT_VISIBLE_CORES"}));

  problem.clear();
  settings = Settings();
  settings.instance = "trn3";
  settings.num_cores = 2;
  devices = devices_of(settings, &problem);
  CHECK_EQ(devices.size(), 2u);
  CHECK_EQ(devices[0].memory_bytes, 36 * 1024 * kMiB);
  CHECK_EQ(devices[0].generation, "trn3");

  settings.visible_cores = {3, 1, 0};  // wins over num_cores
  CHECK_EQ(devices_of(settings, &problem).size(), 3u);
  CHECK(problem.empty());
}

// ---- Memory -------------------------------------------------------------------------------------------------------------

TEST(memory_segments_are_zeroed_writable_and_known) {
  auto memory = make_memory(64 * kMiB);
  char* segment = static_cast<char*>(memory.allocate(3 * kMiB + 1));
  CHECK_EQ(segment[0], 0);
  std::memset(segment, 7, 3 * kMiB + 1);
  CHECK(memory.contains(segment));
  CHECK(memory.contains(segment + 3 * kMiB));
  CHECK(!memory.contains(segment + 3 * kMiB + 4096));
  CHECK(!memory.contains(&memory));
  CHECK(!memory.contains(nullptr));
  int64_t free = 0, total = 0;
  memory.info(&free, &total);
  CHECK_EQ(total, 64 * kMiB);
  CHECK_EQ(free, 61 * kMiB - 4096);

  size_t offset = 0;
  const int fd = memory.segment_fd(segment + 5000, &offset);
  CHECK_EQ(offset, 5000u);
  char byte = 0;
  CHECK_EQ(pread(fd, &byte, 1, 5000), 1);
  CHECK_EQ(byte, 7);
  CHECK_EQ(memory.segment_fd(&memory, &offset), -1);

  memory.release(segment, 3 * kMiB + 1);
  CHECK(!memory.contains(segment));
  memory.info(&free, &total);
  CHECK_EQ(free, total);
}

TEST(memory_of_another_process_can_be_mapped) {
  auto owner = make_memory(64 * kMiB), other = make_memory(64 * kMiB);  // two processes would do the same
  auto* segment = static_cast<char*>(owner.allocate(3 * kMiB));
  const SharedRange range = owner.share(segment + kMiB);
  CHECK_EQ(range.offset, static_cast<size_t>(kMiB));
  auto* mapped = static_cast<char*>(other.adopt(range.fd, range.offset, 4096));
  segment[kMiB + 5] = 7;
  CHECK_EQ(mapped[5], 7);
  CHECK(other.contains(mapped + 4095) && !other.contains(mapped + 4096));
  CHECK(other.share(mapped).adopted && other.share(mapped).fd < 0 && !range.adopted);
  int64_t free = 0, total = 0;
  other.info(&free, &total);
  CHECK_EQ(free, total);  // the owner pays
  owner.release(segment, 3 * kMiB);
  CHECK_EQ(mapped[5], 7);  // the mapping keeps the pages
  other.release(mapped, 4096);
  CHECK(!other.contains(mapped));
  auto* again = static_cast<char*>(owner.allocate(kMiB));
  const int fd = owner.share(again).fd;
  bool refused = false;
  try {
    other.adopt(fd, kMiB, 4096);
  } catch (const OutOfMemory&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(memory_gives_pages_back_at_once) {
  auto memory = make_memory(256 * kMiB);
  const int64_t before = resident_bytes();
  void* segment = memory.allocate(64 * kMiB);
  std::memset(segment, 1, 64 * kMiB);
  CHECK(resident_bytes() - before > 60 * kMiB);
  memory.release(segment, 64 * kMiB);
  CHECK(resident_bytes() - before < 16 * kMiB);
}

TEST(memory_says_when_the_device_is_full) {
  auto memory = make_memory(16 * kMiB);
  void* segment = memory.allocate(10 * kMiB);
  const OutOfMemory full = failure(memory, 7 * kMiB);
  CHECK_EQ(std::string(full.which), "device");
  CHECK_EQ(full.requested, 7 * kMiB);
  CHECK_EQ(full.free, 6 * kMiB);
  CHECK_EQ(full.total, 16 * kMiB);
  CHECK_EQ(std::string(failure(memory, SIZE_MAX).which), "device");
  memory.release(segment, 10 * kMiB);
  memory.release(memory.allocate(16 * kMiB), 16 * kMiB);
}

TEST(memory_says_when_the_host_is_full) {
  auto space = std::make_shared<AddressSpace>(2, 1024 * kMiB, false);
  auto host = std::make_shared<HostBudget>(HostLimits{32 * kMiB, 0});
  EmulatedMemory first(space, host, 0, 1024 * kMiB), second(space, host, 1, 1024 * kMiB);
  first.allocate(20 * kMiB);
  const OutOfMemory full = failure(second, 20 * kMiB);  // the limit is shared
  CHECK_EQ(std::string(full.which), "host");
  CHECK_EQ(full.free, 12 * kMiB);
  CHECK(mentions(full.detail, {"TORCH_NEURONX_HOST_MEMORY_LIMIT", "32 MiB"}));
  int64_t free = 0, total = 0;
  second.info(&free, &total);
  CHECK_EQ(free, 12 * kMiB);
  second.allocate(12 * kMiB);
}

TEST(memory_never_promises_more_than_the_host_has) {
  const HostMemory host = read_host_memory();
  CHECK(host.total > 0 && host.available > 0 && host.available <= host.total);
  auto memory = make_memory(host.total * 2);
  CHECK_EQ(std::string(failure(memory, static_cast<size_t>(host.available)).which), "host");
  // Segments that nobody has touched take no memory yet, and must be counted all the same.
  const auto half = static_cast<size_t>(host.available / 2);
  void* segment = memory.allocate(half);
  CHECK_EQ(std::string(failure(memory, half).which), "host");
  memory.release(segment, half);
  memory.release(memory.allocate(half), half);
}

TEST(memory_random_segments_do_not_overlap) {
  auto memory = make_memory(64 * kMiB);
  std::mt19937 random(1);
  std::map<char*, size_t> live;
  int64_t held = 0;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 && !live.empty()) {
      auto it = std::next(live.begin(), random() % live.size());
      CHECK_EQ(*it->first, static_cast<char>(it->second >> 12));
      memory.release(it->first, it->second);
      held -= static_cast<int64_t>(it->second);
      live.erase(it);
      continue;
    }
    const size_t bytes = (random() % 2048 + 1) * 4096;
    if (held + static_cast<int64_t>(bytes) > 64 * kMiB) continue;
    char* segment = static_cast<char*>(memory.allocate(bytes));
    auto next = live.lower_bound(segment);
    CHECK(next == live.end() || segment + bytes <= next->first);
    CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= segment);
    *segment = static_cast<char>(bytes >> 12);
    live[segment] = bytes;
    held += static_cast<int64_t>(bytes);
  }
}

TEST(memory_guard_makes_device_addresses_inaccessible) {
  {
    auto memory = make_memory(16 * kMiB, {}, true);
    CHECK(guard_offset != 0);
    int* segment = static_cast<int*>(memory.allocate(kMiB));
    CHECK(memory.contains(segment));
    CHECK(!memory.contains(host_address(segment)));
    *host_address(segment) = 42;
    CHECK_EQ(*host_address(segment), 42);
    CHECK(signal_of([&] { *static_cast<volatile int*>(segment) = 1; }) != 0);
    CHECK_EQ(signal_of([&] { *static_cast<volatile int*>(host_address(segment)) = 1; }), 0);
    memory.release(segment, kMiB);
    CHECK(signal_of([&] { *static_cast<volatile int*>(host_address(segment)) = 1; }) != 0);
  }
  make_memory(kMiB);  // back to none
  CHECK_EQ(guard_offset, 0);
}

TEST(memory_from_many_threads) {
  auto memory = make_memory(256 * kMiB);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        char* segment = static_cast<char*>(memory.allocate(kMiB));
        *segment = static_cast<char>(t);
        if (!memory.contains(segment) || *segment != t) ++wrong;
        memory.release(segment, kMiB);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

// ---- Size classes -------------------------------------------------------------------------------------------------------

TEST(size_classes_fit_tightly_and_grow) {
  for (int index = 1; index < kSizeClasses; ++index) CHECK(size_of_class(index) > size_of_class(index - 1));
  for (size_t bytes = 1; bytes < (size_t{1} << 40); bytes += 1 + bytes / 97) {
    const size_t up = size_of_class(size_class_up(bytes));
    CHECK(up >= bytes);
    CHECK_EQ(up % 256, 0u);
    CHECK(up <= 2048 ? up < bytes + 256 : up - bytes <= bytes / 8);
    CHECK(size_class_up(bytes) == 0 || size_of_class(size_class_up(bytes) - 1) < bytes);
    CHECK(bytes < 256 || size_of_class(size_class_down(bytes)) <= bytes);
    CHECK(bytes < 256 || size_of_class(size_class_down(bytes) + 1) > bytes);
  }
}

// ---- Workspace ----------------------------------------------------------------------------------------------------------

TEST(workspace_reuses_and_trims) {
  auto memory = make_memory(64 * kMiB);
  Workspace workspace(memory);
  void* small = workspace.get(100);
  CHECK_EQ(reinterpret_cast<size_t>(small) % 64, 0u);
  CHECK(memory.contains(small));
  Workspace::put(small);
  CHECK_EQ(workspace.get(90), small);
  void* large = workspace.get(5 * kMiB);
  std::memset(large, 1, 5 * kMiB);
  Workspace::put(large);
  CHECK_EQ(workspace.get(5 * kMiB - 1000), large);
  CHECK_EQ(workspace.bytes_reserved(), 8 * kMiB);
  Workspace::put(large);
  workspace.trim();
  CHECK_EQ(workspace.bytes_reserved(), 2 * kMiB);
  CHECK_EQ(workspace.peak_bytes_reserved(), 8 * kMiB);
  Workspace::put(small);
  workspace.trim();
  CHECK_EQ(workspace.bytes_reserved(), 0);
  CHECK_EQ(workspace.bytes_in_use(), 0);
  int64_t free = 0, total = 0;
  memory.info(&free, &total);
  CHECK_EQ(free, total);
}

TEST(workspace_counts_against_the_device) {
  auto memory = make_memory(16 * kMiB);
  Workspace workspace(memory);
  void* kept = workspace.get(9 * kMiB);
  CHECK_THROWS(OutOfMemory, workspace.get(9 * kMiB));
  Workspace::put(kept);
  void* other = workspace.get(13 * kMiB);  // what was kept for reuse makes room
  CHECK(other != nullptr);
  Workspace::put(other);
  CHECK_THROWS(OutOfMemory, workspace.get(SIZE_MAX - 3));
}

TEST(workspace_blocks_do_not_overlap) {
  auto memory = make_memory(512 * kMiB);
  Workspace workspace(memory);
  std::mt19937 random(2);
  std::map<char*, size_t> live;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 && !live.empty()) {
      auto it = std::next(live.begin(), random() % live.size());
      Workspace::put(it->first);
      live.erase(it);
      continue;
    }
    if (live.size() > 200) continue;
    const size_t bytes = size_t{1} << (random() % 21);
    char* data = static_cast<char*>(workspace.get(bytes));
    auto next = live.lower_bound(data);
    CHECK(next == live.end() || data + bytes <= next->first);
    CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= data);
    live[data] = bytes;
    if (i % 5000 == 0) workspace.trim();
  }
}

TEST(workspace_from_many_threads) {
  auto memory = make_memory(256 * kMiB);
  Workspace workspace(memory);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const size_t bytes = size_t{8} << (i % 18);
        auto* data = static_cast<int*>(workspace.get(bytes));
        data[0] = data[1] = t;
        if (data[0] != t) ++wrong;
        Workspace::put(data);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK_EQ(workspace.bytes_in_use(), 0);
}

TEST(large_copies_copy_every_byte_and_no_other) {
  const auto limit = static_cast<size_t>(2 * kMiB);
  std::vector<char> source(3 * limit + 256);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 2654435761u >> 13);
  for (const size_t bytes : {size_t{0}, size_t{1}, limit - 1, limit, limit + 1, limit + 255, 3 * limit + 64}) {
    for (const size_t to_offset : {0, 1, 16, 63}) {
      const size_t from_offset = to_offset * 7 % 64;
      std::vector<char> to(bytes + 128, 'x');
      copy_large(to.data() + to_offset, source.data() + from_offset, bytes);
      CHECK(std::memcmp(to.data() + to_offset, source.data() + from_offset, bytes) == 0);
      CHECK(std::all_of(to.begin(), to.begin() + to_offset, [](char c) { return c == 'x'; }));
      CHECK(std::all_of(to.begin() + to_offset + bytes, to.end(), [](char c) { return c == 'x'; }));
    }
  }
}

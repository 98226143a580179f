#include "csrc/runtime/emulated/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace neuron::emulated {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// A control group version 1 or 2, as the kernel names its files.
struct Files {
  const char* root;
  const char* limit;
  const char* usage;
  const char* prefix;  // of the counters in memory.stat that include descendants
};
constexpr Files kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr Files kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", ""};

struct Group {
  const Files* files;
  std::string folder;
};

/// One number from a file; `otherwise` when there is none, or "max".
int64_t read_number(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : otherwise;
}

/// Sum of the named counters in a file of "name value" lines; colons and units are skipped.
int64_t read_counters(const std::string& path, const std::vector<std::string>& names) {
  std::ifstream file(path);
  int64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t end = std::min(line.find(' '), line.size());
    std::string name = line.substr(0, end);
    if (!name.empty() && name.back() == ':') name.pop_back();
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += std::strtoll(line.c_str() + end, nullptr, 10);
  }
  return sum;
}

/// The memory control groups around this process, innermost first. Inside a container the path that /proc gives may lie outside of what is
/// mounted; then the root of the mount is the container's own group.
std::vector<Group> find_groups() {
  std::vector<Group> groups;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:memory:/path" or, version 2, "0::/path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const Files* files = controllers.empty()                                               ? &kVersion2
                         : ("," + controllers + ",").find(",memory,") != std::string::npos ? &kVersion1
                                                                                           : nullptr;
    if (!files) continue;
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      const std::string folder = files->root + path;
      if (std::ifstream(folder + "/" + files->limit)) groups.push_back({files, folder});
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return groups;
}

}  // namespace

HostMemory read_host_memory() {
  static const auto* const groups = new std::vector<Group>(find_groups());
  HostMemory result{read_counters("/proc/meminfo", {"MemTotal"}) << 10, read_counters("/proc/meminfo", {"MemAvailable"}) << 10,
                    "the machine"};
  for (const auto& [files, folder] : *groups) {
    const int64_t limit = read_number(folder + "/" + files->limit, kUnlimited);
    if (limit == kUnlimited) continue;
    const std::string prefix = files->prefix;
    const int64_t reclaimable = read_counters(folder + "/memory.stat", {prefix + "inactive_file", prefix + "active_file"});
    const int64_t available = std::max<int64_t>(limit - read_number(folder + "/" + files->usage, 0) + reclaimable, 0);
    if (available < result.available) result = {limit, available, "the memory limit of the control group"};
  }
  return result;
}

}  // namespace neuron::emulated

#include "csrc/runtime/target.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>

#include "csrc/runtime/emulated/device.h"
#include "csrc/runtime/emulated/instance.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/trainium/device.h"

namespace neuron {
namespace {

std::atomic<Target*> opened{nullptr};

/// "auto" takes the chip where there is one.
bool uses_trainium(const Settings& s) { return s.target == "trainium" || (s.target == "auto" && trainium::is_present()); }

std::unique_ptr<Target> open_target() {
  const Settings& s = settings();
  TORCH_CHECK(s.problem.empty(), s.problem);
  return uses_trainium(s) ? trainium::open_target() : emulated::open_target(s);
}

}  // namespace

int device_count() noexcept {
  static const int count = [] {
    try {
      const Settings& s = settings();
      std::string problem = s.problem;
      if (!problem.empty()) return 0;
      if (uses_trainium(s)) return trainium::visible_cores();
      return static_cast<int>(emulated::devices_of(s, &problem).size());
    } catch (const std::exception&) {
      return 0;  // out of host memory: the next use of the device says so
    }
  }();
  return count;
}

Target& target() {
  if (Target* ready = opened.load(std::memory_order_acquire)) return *ready;
  static auto* const mutex = new std::mutex;
  std::lock_guard<std::mutex> lock(*mutex);
  if (!opened.load(std::memory_order_relaxed)) {
    opened.store(open_target().release(), std::memory_order_release);  // never closed: stream threads may outlive main()
  }
  return *opened.load(std::memory_order_relaxed);
}

bool target_is_open() noexcept { return opened.load(std::memory_order_acquire) != nullptr; }

}  // namespace neuron

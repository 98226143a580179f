#include "csrc/runtime/emulated/late_warnings.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace neuron {
namespace {

constexpr size_t kMost = 100;  // of a kernel that warns at every call, in a program that never waits

class Keeper final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    std::lock_guard lock(mutex_);
    if (kept_.size() < kMost) kept_.push_back(warning);
    any_.store(true, std::memory_order_release);
  }

  void deliver() {
    if (!any_.load(std::memory_order_acquire)) return;
    std::vector<c10::Warning> warnings;
    {
      std::lock_guard lock(mutex_);
      warnings = std::exchange(kept_, {});
      any_.store(false, std::memory_order_release);
    }
    for (const auto& warning : warnings) c10::warn(warning);
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Warning> kept_;
  std::atomic<bool> any_{false};
};

Keeper& keeper() {
  static auto* const one = new Keeper;  // leaked: the worker may outlive static destructors
  return *one;
}

}  // namespace

void keep_warnings() noexcept { c10::WarningUtils::set_warning_handler(&keeper()); }
void deliver_warnings() { keeper().deliver(); }

}  // namespace neuron

#include "csrc/runtime/emulated/parallel.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>

namespace neuron {
namespace {

// The entry point that compilers call for `#pragma omp parallel`; GNU's and LLVM's runtimes both have it. Found by name: linking an OpenMP
// runtime would give the process a second one.
using GompParallel = void (*)(void (*fn)(void*), void* data, unsigned threads, unsigned flags);

GompParallel gomp_parallel() {
  static const auto found = reinterpret_cast<GompParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return found;
}

struct Team {
  std::atomic<int64_t> next{0};
  const int64_t count, grain;
  const std::function<void(int64_t, int64_t)>& body;

  void work() {
    for (;;) {
      const int64_t first = next.fetch_add(grain, std::memory_order_relaxed);
      if (first >= count) return;
      body(first, std::min(count, first + grain));
    }
  }
};

}  // namespace

void parallel_pieces(int64_t count, int64_t grain, int threads, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t pieces = (count + grain - 1) / grain;
  threads = static_cast<int>(std::min<int64_t>(threads, pieces));
  if (threads <= 1 || gomp_parallel() == nullptr) {
    if (count > 0) body(0, count);
    return;
  }
  Team team{.count = count, .grain = grain, .body = body};
  gomp_parallel()([](void* data) { static_cast<Team*>(data)->work(); }, &team, static_cast<unsigned>(threads), 0);
}

}  // namespace neuron

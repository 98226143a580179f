#include "csrc/nki/launches.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <chrono>
#include <stdexcept>
#include <utility>
#include <vector>

#include "csrc/runtime/stream.h"

namespace neuron::nki {
namespace {

std::exception_ptr too_late() {
  return std::make_exception_ptr(std::runtime_error("an NKI kernel was launched and not waited for while the interpreter ended"));
}

}  // namespace

class Launches::Launch final : public Completion {
 public:
  std::vector<StreamPoint> needs() override { return {}; }  // its stream has run what was before it

  void help(const std::function<bool()>& stop) override {
    std::unique_lock lock(mutex_);
    while (!done() && !stop()) finished_.wait_for(lock, std::chrono::milliseconds(1));
  }

  void finish_with(std::exception_ptr error) {
    finish(std::move(error));
    std::lock_guard lock(mutex_);
    finished_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
};

Launches& Launches::get() {
  static auto* launches = new Launches;  // leaked: streams may be drained after static destructors
  return *launches;
}

void Launches::add(Stream& stream, uint64_t number) {
  if (stream.capture()) stream.drain();  // throws, and says why
  auto* awaiting = dynamic_cast<Awaiting*>(&stream);
  if (!awaiting) throw std::runtime_error("NKI kernels run on emulated NeuronCores only so far: set TORCH_NEURONX_TARGET=emulated");
  auto launch = std::make_shared<Launch>();
  stream.call(
      [this, launch, number] { turn_of({number, 0, {}}, [launch](std::exception_ptr error) { launch->finish_with(std::move(error)); }); });
  awaiting->wait_for(launch);
  stream.query();  // wakes the worker, which leaves a few small records to whoever waits for them
}

void Launches::turn_of(uint64_t kernel, std::vector<uint64_t> addresses, Done done) {
  turn_of({0, kernel, std::move(addresses)}, std::move(done));
}

void Launches::turn_of(Turn turn, Done done) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_) {
      if (turn.number == 0) turn.number = ++last_number_;
      running_.emplace(turn.number, std::move(done));
      ready_.push_back(std::move(turn));
      changed_.notify_one();
      return;
    }
  }
  done(too_late());
}

Turn Launches::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !ready_.empty(); });
  if (ready_.empty()) return {};
  Turn turn = std::move(ready_.front());
  ready_.pop_front();
  return turn;
}

void Launches::done(uint64_t number, std::exception_ptr error) {
  Done done;
  {
    std::lock_guard lock(mutex_);
    auto found = running_.extract(number);
    if (found.empty()) return;
    done = std::move(found.mapped());
  }
  done(std::move(error));
}

void Launches::close() {
  std::unordered_map<uint64_t, Done> left;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(running_);
    ready_.clear();
  }
  changed_.notify_all();
  for (auto& [number, done] : left) done(too_late());
}

bool Launches::closed() {
  std::lock_guard lock(mutex_);
  return closed_;
}

void run_on_one_thread() {
  at::internal::lazy_init_num_threads();
  // PyTorch's own OpenMP runtime, found by name: linking another one would give the process two.
  if (auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
}

}  // namespace neuron::nki

#include "csrc/aten/window_kernels.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "csrc/nki/launches.h"
#include "csrc/program/memory_plan.h"
#include "csrc/runtime/completion.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/stream.h"

namespace neuron {

KernelSearch* kernel_search = nullptr;
std::atomic<uint64_t> kernel_search_version{0};

std::atomic<uint64_t>& window_kernel_launches() {
  static std::atomic<uint64_t> count{0};
  return count;
}

struct WindowWithKernels::Part {
  std::unique_ptr<LoadedSequence> loaded;
};

// ---- building ----

namespace {

template <class Visit>
void for_each_storage(const SequenceCall& call, Visit visit) {
  for (int s : call.reads) visit(s);
  for (int s : call.writes) visit(s);
}

/// A call whose storages have other numbers.
SequenceCall renumbered(SequenceCall call, const std::vector<int>& numbers) {
  auto change = [&](Operand& operand) {
    if (operand.storage >= 0) operand.storage = numbers[operand.storage];
  };
  auto change_set = [&](std::vector<int>& set) {
    for (int& s : set) s = numbers[s];
    std::sort(set.begin(), set.end());
  };
  for (auto& operand : call.tensors) change(operand);
  for (auto& list : call.results)
    for (auto& operand : list) change(operand);
  for (auto& word : call.words)
    if (word.kind == WordSource::Kind::address) word.index = numbers[word.index];
  change_set(call.reads);
  change_set(call.writes);
  return call;
}

}  // namespace

WindowWithKernels::WindowWithKernels(const Sequence& window, std::vector<WindowKernel> found, const std::vector<uint64_t>& scalars,
                                     int device)
    : inputs_(window.input_storages) {
  for (const auto& kernel : found)
    for (int number : kernel.numbers) numbers_.push_back({number, {scalars[2 * number], scalars[2 * number + 1]}});
  kernels = static_cast<int>(found.size());
  std::vector<std::vector<int>> calls;
  number_steps(window, found, &calls);
  place_temporaries(window, calls);
  size_t most = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (calls[i].empty()) continue;
    steps_[i].part = make_part(window, calls[i], device);
    const auto& loaded = *steps_[i].part->loaded;
    most = std::max(most, loaded.temporary_bytes);
    fused_calls += loaded.fused_calls;
    unwritten_bytes += loaded.unwritten_bytes;
  }
  temporary_bytes = shared_bytes_ + most;
}

WindowWithKernels::~WindowWithKernels() = default;

/// Fills steps_, and for each step which calls of the window it runs; none: a kernel.
void WindowWithKernels::number_steps(const Sequence& window, const std::vector<WindowKernel>& found, std::vector<std::vector<int>>* calls) {
  std::vector<int> stands_for(window.calls.size(), -1);
  for (size_t k = 0; k < found.size(); ++k)
    for (int call : found[k].calls) stands_for[call] = static_cast<int>(k);
  bool open = false;
  for (int c = 0; c < static_cast<int>(window.calls.size()); ++c) {
    const int k = stands_for[c];
    if (k >= 0 && found[k].calls.back() != c) continue;
    if (k < 0 && open) {
      calls->back().push_back(c);
      continue;
    }
    open = k < 0;
    steps_.emplace_back();
    calls->emplace_back();
    if (k < 0)
      calls->back().push_back(c);
    else
      steps_.back().kernel = found[k];
  }
}

/// Places for the temporaries that more than one step, or a kernel, touches.
void WindowWithKernels::place_temporaries(const Sequence& window, const std::vector<std::vector<int>>& calls) {
  const int count = static_cast<int>(window.storages.size());
  std::vector<Lifetime> lifetimes(count, {0, static_cast<int>(steps_.size()), -1});
  std::vector<bool> of_kernel(count, false);
  for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
    auto touch = [&](int s) {
      lifetimes[s].first = std::min(lifetimes[s].first, i);
      lifetimes[s].last = std::max(lifetimes[s].last, i);
    };
    for (int c : calls[i]) for_each_storage(window.calls[c], touch);
    for (const auto* list : {&steps_[i].kernel.inputs, &steps_[i].kernel.outputs}) {
      for (const auto& operand : *list) {
        if (operand.storage < 0) continue;
        touch(operand.storage);
        of_kernel[operand.storage] = true;
      }
    }
  }
  std::vector<Lifetime> wanted;
  for (int s = inputs_; s < count; ++s) {
    if (lifetimes[s].last < 0 || window.storages[s].bytes == 0) continue;
    if (lifetimes[s].first == lifetimes[s].last && !of_kernel[s]) continue;
    lifetimes[s].bytes = window.storages[s].bytes;
    wanted.push_back(lifetimes[s]);
    shared_.push_back(s);
  }
  const MemoryPlan plan = plan_memory(wanted);
  shared_offsets_ = plan.offsets;
  shared_bytes_ = (plan.bytes + kPlanAlignment - 1) / kPlanAlignment * kPlanAlignment;
}

/// Its storages: the window's inputs, what is shared, its own temporaries.
std::unique_ptr<WindowWithKernels::Part> WindowWithKernels::make_part(const Sequence& window, const std::vector<int>& calls,
                                                                      int device) const {
  auto sequence = std::make_shared<Sequence>();
  sequence->name = window.name;
  sequence->scalars = window.scalars;
  sequence->input_storages = inputs_ + static_cast<int>(shared_.size());
  sequence->storages.resize(sequence->input_storages);
  for (auto& storage : sequence->storages) storage.kind = SequenceStorage::Kind::input;
  std::vector<int> numbers(window.storages.size(), -1);
  for (int s = 0; s < inputs_; ++s) numbers[s] = s;
  for (size_t i = 0; i < shared_.size(); ++i) numbers[shared_[i]] = inputs_ + static_cast<int>(i);
  for (int c : calls) {
    for_each_storage(window.calls[c], [&](int s) {
      if (numbers[s] >= 0) return;
      numbers[s] = static_cast<int>(sequence->storages.size());
      sequence->storages.push_back(window.storages[s]);
    });
    sequence->calls.push_back(renumbered(window.calls[c], numbers));
  }
  find_lifetimes(*sequence);
  auto part = std::make_unique<Part>();
  part->loaded = program_target().load(std::shared_ptr<const Sequence>(sequence), device);
  return part;
}

bool WindowWithKernels::fits(const uint64_t* scalars) const {
  return std::all_of(numbers_.begin(), numbers_.end(), [&](const Number& number) {
    const uint64_t* found = scalars + 2 * number.scalar;
    return found[0] == number.words[0] && found[1] == number.words[1];
  });
}

// ---- running ----

/// One launch. Consumers of the stream run it step by step; it is blocked while a kernel is being replayed.
class WindowWithKernels::Run final : public Completion, public std::enable_shared_from_this<WindowWithKernels::Run> {
 public:
  Run(std::shared_ptr<const WindowWithKernels> window, std::vector<uint64_t> words) : window_(std::move(window)) {
    const auto& w = *window_;
    const uint64_t block = words.back();
    words.pop_back();
    for (size_t i = 0; i < w.shared_.size(); ++i)
      words.insert(words.begin() + w.inputs_ + static_cast<std::ptrdiff_t>(i), block + w.shared_offsets_[i]);
    words.push_back(block == 0 ? 0 : block + w.shared_bytes_);
    words_ = std::move(words);
  }

  bool ready() const override { return done() || !blocked_.load(std::memory_order_seq_cst); }
  std::vector<StreamPoint> needs() override { return {}; }

  void proceed() override {
    while (!done() && !blocked_.load(std::memory_order_acquire)) {
      if (next_ == window_->steps_.size()) {
        std::exception_ptr error;
        {
          std::lock_guard lock(mutex_);
          error = std::move(error_);
        }
        return finish(std::move(error));
      }
      const auto& step = window_->steps_[next_++];
      if (step.part)
        run_part(*step.part);
      else
        begin(step.kernel);
    }
  }

  void help(const std::function<bool()>& stop) override {
    std::unique_lock lock(mutex_);
    while (!ready() && !stop()) changed_.wait_for(lock, std::chrono::milliseconds(1));
  }

 private:
  /// As in eager, an error does not keep what comes later from running: the first one is the stream's.
  void keep(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }

  void run_part(Part& part) {
    try {
      part.loaded->run(words_.data());
    } catch (...) {
      keep(std::current_exception());
    }
  }

  void begin(const WindowKernel& kernel) {
    std::vector<uint64_t> addresses;
    for (const auto* list : {&kernel.inputs, &kernel.outputs}) {
      for (const Operand& operand : *list) {
        const uint64_t address = base_of(operand.storage) + static_cast<uint64_t>(operand.byte_offset);
        addresses.push_back(reinterpret_cast<uint64_t>(host_address(reinterpret_cast<void*>(address))));
      }
    }
    blocked_.store(true, std::memory_order_seq_cst);
    window_kernel_launches().fetch_add(1, std::memory_order_relaxed);
    nki::Launches::get().turn_of(kernel.id, std::move(addresses),
                                 [self = shared_from_this()](std::exception_ptr error) { self->replayed(std::move(error)); });
  }

  void replayed(std::exception_ptr error) {
    if (error) keep(std::move(error));
    blocked_.store(false, std::memory_order_seq_cst);
    {
      std::lock_guard lock(mutex_);
      changed_.notify_all();
    }
    if (on_done) on_done();
  }

  uint64_t base_of(int storage) const {
    const auto& w = *window_;
    if (storage < w.inputs_) return words_[storage];
    const auto at = std::find(w.shared_.begin(), w.shared_.end(), storage) - w.shared_.begin();
    return words_[static_cast<size_t>(w.inputs_ + at)];
  }

  const std::shared_ptr<const WindowWithKernels> window_;
  std::vector<uint64_t> words_;  ///< of every part: input storages, shared temporaries, scalars, the block of its own temporaries
  size_t next_ = 0;
  std::atomic<bool> blocked_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
};

void WindowWithKernels::launch(Stream& stream, std::vector<uint64_t> words) {
  dynamic_cast<Awaiting&>(stream).wait_for_window(std::make_shared<Run>(shared_from_this(), std::move(words)));
}

}  // namespace neuron

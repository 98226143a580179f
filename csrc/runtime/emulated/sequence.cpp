#include "csrc/runtime/emulated/sequence.h"

#include <exception>
#include <utility>

#include "csrc/program/memory_plan.h"
#include "csrc/program/sequence_groups.h"
#include "csrc/runtime/emulated/fused.h"

namespace neuron {
namespace {

// Groups that run together cannot use each other's dead temporaries: those that write more than this run one after another.
constexpr size_t kMostTemporary = 1 << 20;

/// One call by its own kernel, the very executable that eager launches.
class KernelStep final : public SequenceStep {
 public:
  KernelStep(const SequenceCall& call, int index) : executable_(*call.executable), sources_(call.words), words_(call.words.size()) {
    serial = executable_.serial;
    calls = {index};
  }

  void run(const SequenceLaunch& launch) override {
    for (size_t w = 0; w < sources_.size(); ++w) words_[w] = word_of(sources_[w], launch);
    executable_.run(words_.data());
  }

  const char* name() const override { return executable_.name(); }

 private:
  Executable& executable_;
  const std::vector<WordSource> sources_;
  std::vector<uint64_t> words_;
};

class EmulatedSequence final : public LoadedSequence {
 public:
  explicit EmulatedSequence(std::shared_ptr<const Sequence> sequence);

  void run(const uint64_t* words) override;
  const char* name() const override { return sequence_->name.c_str(); }

 private:
  void make_steps();
  void plan();
  void bind(const uint64_t* words);

  const std::shared_ptr<const Sequence> sequence_;
  std::vector<std::unique_ptr<SequenceStep>> steps_;
  struct Temporary {
    int storage;
    size_t offset;
  };
  std::vector<Temporary> temporaries_;
  std::vector<int> escaping_;
  std::vector<uint64_t> bases_;  // one launch runs at a time, see Note [Who runs the work] in stream.h
};

EmulatedSequence::EmulatedSequence(std::shared_ptr<const Sequence> sequence)
    : sequence_(std::move(sequence)), bases_(sequence_->storages.size(), 0) {
  make_steps();
  std::vector<bool> counted(sequence_->calls.size(), false);
  for (const auto& step : steps_) {
    serial = serial && step->serial;
    if (step->groups == 0) {
      ++kernels;
      continue;
    }
    groups += step->groups;
    for (int call : step->calls) {
      fused_calls += !counted[call];
      counted[call] = true;
    }
    for (int s : step->internal) unwritten_bytes += sequence_->storages[s].bytes;
  }
  plan();
}

/// Groups that follow one another and have nothing to do with each other make one step.
void EmulatedSequence::make_steps() {
  std::vector<SequenceGroup> together;
  TouchedMemory touched;
  size_t temporary = 0;  // bytes of temporaries that they write
  auto close = [&] {
    if (!together.empty()) steps_.push_back(std::make_unique<GroupStep>(std::exchange(together, {}), static_cast<int>(bases_.size())));
    touched = {};
    temporary = 0;
  };
  for (auto& group : group_calls(*sequence_)) {
    if (!group.group) {
      close();
      steps_.push_back(std::make_unique<KernelStep>(sequence_->calls[group.calls.front()], group.calls.front()));
      continue;
    }
    TouchedMemory own;
    own.add(*group.group);
    size_t more = 0;
    for (int s : own.written()) {
      const auto& storage = sequence_->storages[s];
      if (storage.kind == SequenceStorage::Kind::fresh && !storage.escapes) more += storage.bytes;
    }
    if (touched.meets(*group.group) || temporary + more > kMostTemporary) close();
    temporary += more;
    touched.add(*group.group);
    together.push_back(std::move(group));
  }
  close();
}

/// Gives each temporary that is not internal to a step its place in the block.
void EmulatedSequence::plan() {
  const auto& storages = sequence_->storages;
  std::vector<bool> placeless(storages.size());
  std::vector<Lifetime> lifetimes(storages.size(), {0, static_cast<int>(steps_.size()), -1});
  for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
    auto touch = [&](int s) {
      lifetimes[s].first = std::min(lifetimes[s].first, i);
      lifetimes[s].last = std::max(lifetimes[s].last, i);
    };
    for (int call : steps_[i]->calls) {
      for (int s : sequence_->calls[call].reads) touch(s);
      for (int s : sequence_->calls[call].writes) touch(s);
    }
    for (int s : steps_[i]->internal) placeless[s] = true;
  }
  std::vector<Lifetime> wanted;
  for (int s = 0; s < static_cast<int>(storages.size()); ++s) {
    if (storages[s].kind != SequenceStorage::Kind::fresh) continue;
    if (storages[s].escapes) {
      escaping_.push_back(s);
    } else if (storages[s].bytes > 0 && !placeless[s] && lifetimes[s].last >= 0) {
      lifetimes[s].bytes = storages[s].bytes;
      wanted.push_back(lifetimes[s]);
      temporaries_.push_back({s, 0});
      placed.push_back(s);
    }
  }
  const MemoryPlan planned = plan_memory(wanted);
  for (size_t t = 0; t < temporaries_.size(); ++t) temporaries_[t].offset = planned.offsets[t];
  temporary_bytes = planned.bytes;
}

void EmulatedSequence::bind(const uint64_t* words) {
  for (int s = 0; s < sequence_->input_storages; ++s) bases_[s] = words[s];
  const uint64_t* fresh = words + sequence_->fresh_words();
  for (int s : escaping_) bases_[s] = *fresh++;
  for (const auto& temporary : temporaries_) bases_[temporary.storage] = *fresh + temporary.offset;
}

/// As in eager, an error does not keep later calls from running: the first one is raised at the end.
void EmulatedSequence::run(const uint64_t* words) {
  bind(words);
  SequenceLaunch launch{bases_.data(), words + sequence_->scalar_word(0), 0, 0};
  if (sequence_->draws > 0) {
    launch.seed = words[sequence_->seed_word()];
    launch.draw = words[sequence_->seed_word() + 1];
  }
  std::exception_ptr first;
  for (const auto& step : steps_) {
    try {
      step->run(launch);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace

std::unique_ptr<LoadedSequence> load_sequence(std::shared_ptr<const Sequence> sequence, int) {
  return std::make_unique<EmulatedSequence>(std::move(sequence));
}

}  // namespace neuron

#include "csrc/program/explain.h"

#include <utility>

namespace neuron {

std::string (*python_call_site)() = nullptr;

Counters& counters() {
  static auto* all = new Counters;
  return *all;
}

namespace {

struct FallbackCounts {
  std::mutex mutex;
  std::map<std::string, uint64_t> by_op;
};
FallbackCounts& fallbacks_by_op() {
  static auto* one = new FallbackCounts;
  return *one;
}

}  // namespace

void count_fallback(const std::string& op) {
  counters().fallbacks.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(fallbacks_by_op().mutex);
  ++fallbacks_by_op().by_op[op];
}

std::map<std::string, uint64_t> fallback_counts() {
  std::lock_guard lock(fallbacks_by_op().mutex);
  return fallbacks_by_op().by_op;
}

Recording& recording() {
  static auto* one = new Recording;
  return *one;
}

void Recording::begin(bool sites) {
  std::lock_guard lock(mutex_);
  misses_.clear();
  syncs_.clear();
  fallbacks_.clear();
  sites_ = sites;
  on_.store(true);
}

void Recording::end(std::vector<Note>* misses, std::vector<Note>* syncs, std::vector<Note>* fallbacks) {
  std::lock_guard lock(mutex_);
  on_.store(false);
  *misses = std::exchange(misses_, {});
  *syncs = std::exchange(syncs_, {});
  *fallbacks = std::exchange(fallbacks_, {});
}

void Recording::note(std::vector<Note>& list, std::string subject, std::string reason) {
  constexpr size_t kMost = 100000;  // a recording left on must not eat the memory; the counters stay exact
  std::string site = sites_ && python_call_site ? python_call_site() : std::string();
  std::lock_guard lock(mutex_);
  if (list.size() < kMost) list.push_back({std::move(subject), std::move(reason), std::move(site)});
}

void Recording::miss(std::string op, std::string reason) { note(misses_, std::move(op), std::move(reason)); }
void Recording::sync(std::string why) { note(syncs_, std::move(why), ""); }
void Recording::fallback(std::string op, std::string reason) {
  if (on()) note(fallbacks_, std::move(op), std::move(reason));
}

}  // namespace neuron

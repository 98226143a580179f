#include "csrc/program/cache.h"

#include <algorithm>

#include "csrc/aten/guard.h"
#include "csrc/runtime/settings.h"

namespace neuron {
namespace {

std::atomic<int64_t> total{0};

/// Evicted entries, until their executables can no longer be named by a record.
class Graveyard {
 public:
  static Graveyard& get() {
    static auto* graveyard = new Graveyard;
    return *graveyard;
  }

  void bury(c10::intrusive_ptr<c10::intrusive_ptr_target> entry) {
    std::lock_guard lock(mutex_);
    graves_.push_back({std::move(entry), {}});
  }

  /// Frees what is safe to free now.
  void reap() {
    std::lock_guard lock(mutex_);
    auto dead = [&](Grave& grave) {
      if (grave.points.empty()) {
        if (grave.entry.use_count() > 1) return false;
        for (int device = 0; device < visible_devices(); ++device) {
          for_each_stream(device, [&](Stream& stream) { grave.points.emplace_back(&stream, stream.enqueued()); });
        }
      }
      return std::all_of(grave.points.begin(), grave.points.end(), [](auto& p) { return p.first->reached(p.second); });
    };
    graves_.erase(std::remove_if(graves_.begin(), graves_.end(), dead), graves_.end());
  }

 private:
  struct Grave {
    c10::intrusive_ptr<c10::intrusive_ptr_target> entry;
    std::vector<std::pair<Stream*, uint64_t>> points;
  };
  std::mutex mutex_;
  std::vector<Grave> graves_;
};

std::mutex caches_mutex;
std::vector<Cache*>& caches() {
  static auto* list = new std::vector<Cache*>;
  return *list;
}

}  // namespace

uint64_t CacheEntry::next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

uint64_t hash_key(KeyWords words) {
  // Multiply-xorshift per word: about a nanosecond each, and collisions only cost a comparison.
  uint64_t h = 0x9e3779b97f4a7c15ULL ^ words.size();
  for (uint64_t w : words) {
    h = (h ^ w) * 0xff51afd7ed558ccdULL;
    h ^= h >> 32;
  }
  return h;
}

c10::intrusive_ptr<CacheEntry> Cache::find(uint64_t hash, KeyWords key) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(hash);
  if (found == entries_.end()) return {};
  for (auto entry = found->second; entry; entry = entry->next) {
    if (KeyWords(entry->key) == key) return entry;
  }
  return {};
}

c10::intrusive_ptr<CacheEntry> Cache::insert(uint64_t hash, c10::intrusive_ptr<CacheEntry> entry) {
  if (auto known = find(hash, entry->key)) return known;
  // Too many: this overload, the one that makes new keys, starts afresh. Its live keys come back at one inline call each.
  if (total.load() >= settings().cache_entries) {
    clear();
    if (total.load() >= settings().cache_entries) clear_cache();
  }
  Graveyard::get().reap();
  std::lock_guard lock(mutex_);
  if (entries_.empty()) {
    std::lock_guard list_lock(caches_mutex);
    if (std::find(caches().begin(), caches().end(), this) == caches().end()) caches().push_back(this);
  }
  auto& head = entries_[hash];
  entry->next = head;
  head = entry;
  latest_ = entry;
  total.fetch_add(1);
  return entry;
}

c10::intrusive_ptr<CacheEntry> Cache::latest() {
  std::lock_guard lock(mutex_);
  return latest_;
}

void Cache::clear() {
  std::lock_guard lock(mutex_);
  for (auto& [hash, head] : entries_) {
    for (auto entry = std::move(head); entry;) {
      auto next = std::move(entry->next);
      Graveyard::get().bury(std::move(entry));
      total.fetch_sub(1);
      entry = std::move(next);
    }
  }
  entries_.clear();
  latest_.reset();
}

size_t Cache::size() {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

void retire(c10::intrusive_ptr<c10::intrusive_ptr_target> owner) {
  Graveyard::get().reap();
  Graveyard::get().bury(std::move(owner));
}

int64_t cached_programs() { return total.load(); }

void clear_cache() {
  std::vector<Cache*> all;
  {
    std::lock_guard lock(caches_mutex);
    all = caches();
  }
  for (auto* cache : all) cache->clear();
  Graveyard::get().reap();
}

}  // namespace neuron

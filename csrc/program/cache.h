// The eager cache of one overload: keys, and what a hit needs.
//
// Note [Lifetime of entries]
// Records in a stream name executables by address. An evicted entry is therefore kept aside until no thread uses it (its
// reference count is that of the list alone) and every stream has passed the point at which that was seen.
#pragma once

#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/runtime/executable.h"

namespace neuron {

/// The words that a call is looked up by. Two calls with equal words are served by the same Program.
using KeyWords = c10::ArrayRef<uint64_t>;

/// 64-bit hash of a key.
uint64_t hash_key(KeyWords words);

struct CacheEntry : c10::intrusive_ptr_target {
  const uint64_t id = next_id();  ///< never used again, unlike an address
  std::vector<uint64_t> key;
  uint64_t signature = 0;       ///< of overload and key: the same in each run of a program
  bool fuses = false;           ///< pointwise: better not the last of a window
  uint64_t bytes = 0;           ///< of the tensors that it reads and makes
  std::vector<uint32_t> marks;  ///< where each argument's words begin, for explain()
  std::shared_ptr<const Program> program;
  std::unique_ptr<Executable> executable;
  bool settles = false;                 ///< has to have run before the caller goes on, see fix_default_dtype()
  c10::intrusive_ptr<CacheEntry> next;  ///< same hash, other key

  static uint64_t next_id();
};

class Cache {
 public:
  /// The entry with this key, or null. Thread safe.
  c10::intrusive_ptr<CacheEntry> find(uint64_t hash, KeyWords key);

  /// Adds an entry and evicts when the process holds too many. Gives the entry to launch: another thread's, when that has been faster,
  /// since records name the executable of an entry by address and only entries of the cache outlive them.
  c10::intrusive_ptr<CacheEntry> insert(uint64_t hash, c10::intrusive_ptr<CacheEntry> entry);

  /// Any entry, to compare a missed key with: the one added last. Null when there is none.
  c10::intrusive_ptr<CacheEntry> latest();

  /// Drops all entries of this overload; see Note [Lifetime of entries].
  void clear();

  size_t size();

 private:
  std::mutex mutex_;
  ska::flat_hash_map<uint64_t, c10::intrusive_ptr<CacheEntry>> entries_;
  c10::intrusive_ptr<CacheEntry> latest_;
};

/// Takes an owner of executables that is no longer wanted, and frees it as Note [Lifetime of entries] says.
void retire(c10::intrusive_ptr<c10::intrusive_ptr_target> owner);

/// Entries of all overloads.
int64_t cached_programs();

/// Drops all entries of all overloads.
void clear_cache();

}  // namespace neuron

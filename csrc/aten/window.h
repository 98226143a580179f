// Adaptive Eager: runs of eager launches that go into the queue as one Program. See docs/dev/program.md.
//
// Note [Life of a window]
// While a stream's window is open, a cache hit appends its launch to it instead of the queue. Its results have their memory already, from
// the caching allocator as ever, so memory statistics are those of plain eager. The window closes when anything but a hit reaches the
// stream (Note [Windows] in runtime/stream.h), at a cap of calls, and before that at places that the calls themselves choose (a hash of the
// last few says so), so that a loop's windows fall on the same calls in each round, whatever its length. Never by time, nor by what the
// queue holds.
//
// A closed window is looked up by its calls and by which tensors share memory how. Known: one launch of its Program, in which what was
// freed while the window was open is a temporary, with a place in a common block or, inside a fused group, none at all. Else: one record
// that runs its calls one after another, at the addresses that eager gave them; the second time, the Program is built.
//
// Note [Memory that changes hands]
// Tensors made in the window and still alive when it closes lie where the allocator put them. So do the window's inputs, even when they
// were freed meanwhile; their memory may then belong to a tensor made later in the window. Whatever overlaps is therefore one storage of
// the Program, so that order is kept between those that touch it. What was made *and* freed in the window keeps no claim to its old
// address: it lies in a block that the launch allocates. Such a block may never raise the peak of the memory in use above plain eager's,
// which had all of these tensors too, but never at once with all that is alive at the end; where it would, those that need memory at all
// stay where eager put them, as if they were alive.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "csrc/aten/call_reader.h"
#include "csrc/program/cache.h"
#include "csrc/program/program_target.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/stream.h"

namespace neuron {

struct Block;

class EagerWindow final : public Window {
 public:
  static EagerWindow& of(Stream& stream);

  /// Adds a launch. `words`: all of them; `fresh`: the block of each fresh storage (null: no bytes), just allocated.
  void append(CacheEntry& entry, const CallReader& reader, c10::ArrayRef<uint64_t> words, c10::ArrayRef<Block*> fresh);

  void close() override;

  /// What a window holds. Public for the functions that turn it into a Program.
  struct Span {
    uint64_t begin = 0, end = 0;
  };
  /// A tensor that leads its storage group: where its storage lies, and which fresh storage of the window that is (-1: none).
  struct Reference {
    uint64_t address;
    Span storage;
    int fresh;
  };
  struct Fresh {
    const Block* block;
    uint64_t made_by;
    Span storage;
  };
  struct Calls {
    std::vector<c10::intrusive_ptr<CacheEntry>> entries;
    std::vector<uint64_t> words;        ///< of all calls
    std::vector<Reference> references;  ///< of all calls: one per leading slot, in slot order
    std::vector<Fresh> fresh;           ///< of all calls
    bool foreign = false;               ///< memory that is no block of the allocator
    bool serial = true;
    uint64_t bytes = 0;  ///< of the tensors that the calls read and make
  };

 private:
  explicit EagerWindow(Stream& stream) : stream_(stream) {}
  void close_locked();
  bool launch_program(const Calls& calls);
  void launch_calls(Calls calls);

  Stream& stream_;
  std::recursive_mutex mutex_;  // its holder may have to wait for streams, and so come back here
  bool closing_ = false;        // then with this
  Calls calls_;
  bool ends_here(const CacheEntry& last);

  uint64_t epoch_ = 0;
  uint64_t recent_ = 0;  ///< hash of the last calls' signatures
};

/// Whether hits may wait in windows: the setting, until somebody says otherwise (which closes the windows, and gives what was before).
inline std::atomic<bool>& adaptive_eager() {
  static std::atomic<bool> on{settings().adaptive_eager};
  return on;
}
bool set_adaptive_eager(bool on);

}  // namespace neuron

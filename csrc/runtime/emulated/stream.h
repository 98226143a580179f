// Streams of emulated NeuronCores: rings of 64-bit words, and the one compute slot that runs them.
//
// Note [Who runs the work]
// There is one compute slot per process, so one OpenMP team runs at a time. Its holder consumes records. Holders are: the
// worker thread, a host thread that waits, and a host thread that runs an op inline (InlineRun). A thread that waits runs
// the queue itself instead of sleeping until another thread has done it; a wait on another stream is met by running that
// stream up to the awaited point. The chain of such waits is never deeper than the number of streams, because an event is
// always enqueued before the wait that names it. A wait for another process blocks a stream: see Note [Blocked streams].
//
// Note [Few cores]
// A busy host thread beside an OpenMP team on the same cores slows the team about threefold: its barrier waits for a thread
// that the scheduler has put aside. Executables are therefore serial (one thread) or parallel, by their shapes alone. While
// cores are scarce, the worker runs serial records beside the host and leaves a parallel one to the thread that will wait
// for it; once the host has not enqueued anything for a moment, the worker runs it. No consumer ever spins, and the worker
// does not look up while another thread holds the slot: naps would take a core from its team again and again. This decides
// only when and where a record runs, never its result.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "csrc/runtime/completion.h"
#include "csrc/runtime/stream.h"

namespace neuron {

class EmulatedStream final : public Stream, public Awaiting {
 public:
  EmulatedStream(int device, int64_t id, int priority, size_t ring_words);

  uint64_t launch(Executable& exe, const uint64_t* words, size_t count) override { return launch(exe, words, count, /*of_window=*/false); }
  uint64_t launch_window(Executable& exe, const uint64_t* words, size_t count) override { return launch(exe, words, count, true); }
  uint64_t call(std::function<void()> fn) override;
  uint64_t mark(TimeCell time) override;
  void wait_for(Stream& other, uint64_t sequence) override;
  void wait_for(std::shared_ptr<Completion> completion) override;
  void wait_for_window(std::shared_ptr<Completion> completion) override;
  bool query() override;
  void drain(uint64_t sequence) override;
  void raise_pending() override;
  void open_window(Window* window) override;

 private:
  friend class Executor;
  friend class InlineRun;
  class Producing;

  uint64_t launch(Executable& exe, const uint64_t* words, size_t count, bool of_window);
  uint64_t push(uint64_t kind, uint64_t subject, const uint64_t* words, size_t count, bool serial, bool of_window = false,
                uint64_t calls = 1);
  bool make_room(size_t words);
  void relieve();
  bool idle() const { return completed() == queued(); }

  // Consumer side, called with the compute slot held.
  bool next_is_serial();
  bool run_one();  // false: blocked, nothing was consumed; see Executor::take_blocker()
  bool await(const std::shared_ptr<Completion>& completion);
  void fail(std::exception_ptr error);

  // The ring. Positions count words and never wrap; the slot of a position is position & mask_.
  std::vector<uint64_t> ring_;
  const uint64_t mask_;
  std::mutex producer_;                        // orders producers of this stream; an InlineRun keeps it
  alignas(64) uint64_t tail_ = 0;              // producers only
  alignas(64) std::atomic<uint64_t> head_{0};  // first word not yet consumed
  bool running_ = false;                       // a record of this stream is being run, perhaps further up this thread's stack

  std::mutex error_mutex_;
  std::exception_ptr error_;
};

/// Makes a stream of an emulated device and registers it with the worker. Streams are never destroyed.
Stream* make_emulated_stream(int device, int64_t id, int priority);

/// A host thread runs a kernel itself, after all earlier work of a stream: it holds the compute slot, and the stream, to which other
/// threads add nothing meanwhile. (The kernel writes into blocks that are free in the stream's order. A launch that is still to run may
/// read them.) Waits with the GIL released. A stream under capture runs nothing, and needs no such care.
class InlineRun {
 public:
  explicit InlineRun(Stream& stream);
  ~InlineRun();
  InlineRun(const InlineRun&) = delete;
  InlineRun& operator=(const InlineRun&) = delete;

 private:
  bool hold_stream();
  void let_go();

  const bool nested_;  // in a record, or in another inline run: the slot is held already
  EmulatedStream& stream_;
  bool holds_stream_ = false;
};

/// Drains all streams and joins the worker. Called at exit; later work runs when it is waited for.
void shutdown_streams();

}  // namespace neuron

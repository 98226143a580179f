// torch.accelerator.Graph: capture of a stream's work, and its replay without Python or the dispatcher.
//
// Note [Graphs]
// A stream under capture hands its launches to the graph (Stream::set_capture) instead of its queue. An overload that meets new arguments
// during a capture is traced on zero-filled scratch memory, so that nothing of the user's changes; what depends on data, or waits, throws.
// Memory: blocks that were allocated during the capture belong to the graph until reset(); see Capture in runtime/stream.h.
// Random ops: each replay takes fresh words from the device's default generator, as many as the capture took, and moves the offsets of the
// captured launches by the same distance.
// One stream is captured. Work that others do meanwhile is not part of the graph.
#pragma once

#include <ATen/core/GraphImplInterface.h>
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <vector>

#include "csrc/runtime/stream.h"

namespace neuron {

class Graph final : public at::GraphImplInterface, private Capture {
 public:
  explicit Graph(const at::GraphImplArgs& args) : keep_graph_(args.keep_graph) {}
  ~Graph() override;

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override;
  void capture_end() override;
  void instantiate() override;
  /// Appends the captured work to the current stream. Throws when nothing has been captured.
  void replay() override;
  void reset() override;
  c10::MempoolId_t pool() const override { return pool_; }
  void enable_debug_mode() override { debug_ = true; }
  /// Writes the steps as a Graphviz file. Throws unless enable_debug_mode() was called.
  void debug_dump(const std::string& path) override;

  /// The graph that captures `stream`; null when none does.
  static Graph* of(const Stream& stream) { return static_cast<Graph*>(stream.capture()); }

  /// Told of the launch that has just been made: what keeps its executable alive, and where its words hold the generator's seed (-1:
  /// nowhere) and a Philox offset.
  void note_launch(c10::intrusive_ptr<c10::intrusive_ptr_target> owner, int seed_word, int offset_word);

 private:
  struct Draw {
    size_t step;
    int seed_word, offset_word;
    uint64_t captured;  ///< offset at the capture, from the generator's at its start
  };

  void add(Step step) override;
  Block* reuse(size_t bytes) override;
  void hold(Block* block) override;
  void freed(Block* block) override;

  const bool keep_graph_;
  bool captured_ = false, debug_ = false;
  Stream* stream_ = nullptr;
  c10::MempoolId_t pool_{0, 0};
  std::vector<Step> steps_;
  std::vector<c10::intrusive_ptr<c10::intrusive_ptr_target>> owners_;
  std::vector<Draw> draws_;
  uint64_t first_offset_ = 0, words_drawn_ = 0;

  std::mutex mutex_;
  std::vector<Block*> live_, free_;  ///< blocks of the graph: held by tensors, and by the graph alone
};

}  // namespace neuron

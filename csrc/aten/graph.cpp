#include "csrc/aten/graph.h"

#include <algorithm>
#include <fstream>

#include "csrc/aten/allocator.h"
#include "csrc/aten/generator.h"
#include "csrc/aten/guard.h"
#include "csrc/aten/interrupt.h"
#include "csrc/runtime/executable.h"

namespace neuron {
namespace {

NeuronGenerator& generator_of(const Stream& stream) { return *generator_or_default(std::nullopt, stream.device); }

c10::MempoolId_t next_pool() {
  static std::atomic<uint64_t> last{0};
  return {0, ++last};
}

}  // namespace

Graph::~Graph() {
  if (stream_ != nullptr) stream_->set_capture(nullptr);
  reset();
}

void Graph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) {
  TORCH_CHECK(!captured_, "This graph holds a capture already: call reset() before capturing again.");
  Stream* stream = current_stream(current_device());
  TORCH_CHECK(stream->capture() == nullptr, "The current stream is being captured by another graph.");
  stream->synchronize();
  pool_ = pool == c10::MempoolId_t{0, 0} ? next_pool() : pool;
  stream_ = stream;
  first_offset_ = generator_of(*stream).get_offset();
  stream->set_capture(this);
}

void Graph::capture_end() {
  TORCH_CHECK(stream_ != nullptr, "capture_end() without capture_begin().");
  stream_->set_capture(nullptr);
  words_drawn_ = generator_of(*stream_).get_offset() - first_offset_;
  stream_ = nullptr;
  captured_ = true;
  if (!keep_graph_) instantiate();
}

void Graph::instantiate() { TORCH_CHECK(captured_, "instantiate() needs a capture: capture_begin(), work, capture_end()."); }

void Graph::replay() {
  TORCH_CHECK(captured_, "replay() needs a capture: capture_begin(), work, capture_end().");
  interrupt("the replay of a graph");
  Stream* stream = current_stream(current_device());
  if (words_drawn_ > 0) {
    const auto [seed, offset] = generator_of(*stream).reserve(words_drawn_);
    for (const auto& draw : draws_) {
      auto& words = steps_[draw.step].words;
      words[draw.seed_word] = seed;
      words[draw.offset_word] = offset + draw.captured;
    }
  }
  for (const auto& step : steps_) {
    if (step.executable != nullptr)
      stream->launch(*step.executable, step.words.data(), step.words.size());
    else
      stream->call(step.call);
  }
}

void Graph::reset() {
  if (!captured_) return;
  // The steps may still be queued somewhere; their executables and memory must outlive that.
  for (int device = 0; device < visible_devices(); ++device) {
    for_each_stream(device, [](Stream& stream) {
      if (stream.capture() == nullptr) stream.drain();
    });
  }
  captured_ = false;
  steps_.clear();
  owners_.clear();
  draws_.clear();
  std::lock_guard lock(mutex_);
  for (Block* block : live_) block->capture = nullptr;
  for (Block* block : free_) {
    block->capture = nullptr;
    NeuronAllocator::free_block(block);
  }
  live_.clear();
  free_.clear();
}

void Graph::debug_dump(const std::string& path) {
  TORCH_CHECK(debug_, "debug_dump() needs enable_debug_mode() before the capture.");
  std::ofstream out(path);
  out << "digraph neuron {\n";
  for (size_t i = 0; i < steps_.size(); ++i) {
    out << "  s" << i << " [label=\"" << (steps_[i].executable ? steps_[i].executable->name() : "copy") << "\"];\n";
    if (i > 0) out << "  s" << i - 1 << " -> s" << i << ";\n";
  }
  out << "}\n";
  TORCH_CHECK(out.good(), "debug_dump() could not write ", path);
}

void Graph::note_launch(c10::intrusive_ptr<c10::intrusive_ptr_target> owner, int seed_word, int offset_word) {
  owners_.push_back(std::move(owner));
  if (seed_word < 0) return;
  draws_.push_back({steps_.size() - 1, seed_word, offset_word, steps_.back().words[offset_word] - first_offset_});
}

void Graph::add(Step step) { steps_.push_back(std::move(step)); }

Block* Graph::reuse(size_t bytes) {
  std::lock_guard lock(mutex_);
  auto fits = [&](const Block* block) { return block->size >= bytes && block->size <= 2 * bytes + 4096; };
  auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return nullptr;
  Block* block = *found;
  free_.erase(found);
  live_.push_back(block);
  return block;
}

void Graph::hold(Block* block) {
  std::lock_guard lock(mutex_);
  block->capture = this;
  live_.push_back(block);
}

void Graph::freed(Block* block) {
  std::lock_guard lock(mutex_);
  live_.erase(std::remove(live_.begin(), live_.end(), block), live_.end());
  free_.push_back(block);
}

}  // namespace neuron

namespace at {
using NeuronGraph = neuron::Graph;
REGISTER_GRAPH_IMPL(NEURON, NeuronGraph)
}  // namespace at

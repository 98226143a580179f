// Recorder: listens to the launches of this thread while a function runs, and writes them down as a Sequence.
//
// Note [Recording]
// The front end tells of each launch: the cached entry, the words, and the tensors that they came from. An address is written down as an
// offset into the storage that held it: one of the inputs', or one that a recorded launch (or `empty`) made. Storages are known by
// identity; weak references keep a dead one's place from being taken by another. What has no such origin, or happens outside of launches
// (the host reads a value, copies, waits, another stream), ends the recording with a reason: the function still runs to its end,
// unrecorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/aten/call_reader.h"
#include "csrc/program/cache.h"
#include "csrc/program/sequence.h"
#include "csrc/runtime/stream.h"

namespace neuron {

class Recorder {
 public:
  /// Starts listening on the calling thread, which must not have a Recorder yet. `inputs`: tensors of the device (strided), 0-dim CPU
  /// tensors, and values. They must stay alive.
  Recorder(std::string name, c10::ArrayRef<c10::IValue> inputs, Stream& stream);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The calling thread's, or null.
  static Recorder* current() { return current_; }

  /// Ends the recording; the first reason counts.
  void stop(std::string why);
  bool stopped() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }

  /// A launch was made, or a call ran inline that the entry will launch next time. `words`: without the fresh storages, which follow.
  void launched(CacheEntry& entry, const CallReader& reader, c10::ArrayRef<uint64_t> words, c10::ArrayRef<c10::Storage> fresh,
                const Stream& stream, bool draws);

  /// A storage was made without a launch (`empty`).
  void made(const c10::Storage& storage);

  /// The device's default generator gave `words` words from `offset` on.
  void drew(uint64_t seed, uint64_t offset, uint64_t words);

  /// Stops listening. Gives the Sequence, or null: see reason().
  std::shared_ptr<Sequence> finish(c10::ArrayRef<c10::IValue> outputs);

  /// After finish(): per input, by how much its version was bumped by in-place calls.
  const std::vector<uint32_t>& version_bumps() const { return version_bumps_; }

  /// Seed and first Philox offset of what was drawn, when that was one run of words; else, or when nothing was drawn, nothing.
  std::optional<std::pair<uint64_t, uint64_t>> drawn_from() const;

  /// Scalar inputs whose value cannot be told apart from a constant of the recording: they must be part of the key. Grows until finish().
  const std::vector<bool>& keyed_scalars() const { return keyed_scalars_; }

 private:
  struct Draw {
    uint64_t seed, offset, relative;
  };

  void add_input(const at::Tensor& tensor, int input);
  int add_storage(const c10::Storage& storage, SequenceStorage meta);
  int find_storage(const c10::Storage& storage) const;
  /// Where a tensor lies; false (and stopped) when its storage is unknown.
  bool locate(const at::Tensor& tensor, Operand* operand);
  void read_scalar(const TensorSlot& slot, const at::Tensor& tensor, SequenceCall& recorded);
  bool read_draw(const Program& program, c10::ArrayRef<uint64_t> words, SequenceCall& recorded);
  void note_constant(double value);
  SequenceResult result_of(const c10::IValue& output, c10::ArrayRef<c10::IValue> earlier);

  static inline constinit thread_local Recorder* current_ = nullptr;

  const c10::ArrayRef<c10::IValue> inputs_;
  const Stream& stream_;
  std::shared_ptr<Sequence> sequence_;
  std::string reason_;
  std::unordered_map<const c10::StorageImpl*, int> by_storage_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> pins_;
  std::vector<int64_t> bases_;  ///< by storage: bytes from its beginning to its base
  std::unordered_map<const c10::TensorImpl*, int> by_tensor_;
  std::vector<TensorMeta> metas_;  ///< by input, as it was when the recording began
  std::vector<const void*> data_;  ///< likewise: where its storage was
  std::vector<uint32_t> versions_, version_bumps_;
  std::unordered_map<const c10::TensorImpl*, int> scalars_;
  std::vector<double> scalar_values_;
  std::vector<bool> keyed_scalars_, met_scalars_;
  std::vector<Draw> draws_;
};

}  // namespace neuron

// Programs on the emulated target: ATen's CPU kernels on zero-copy views of device memory.
#pragma once

#include <memory>
#include <vector>

#include "csrc/program/program_target.h"

namespace neuron {

class TraceArena;

/// A CPU storage on memory that it does not own; and one on the memory of a device storage.
c10::Storage cpu_storage(void* data, size_t bytes);
c10::Storage cpu_view(const c10::Storage& device);

/// A CPU tensor on `storage` described by `meta`.
at::Tensor cpu_view(c10::Storage storage, const TensorMeta& meta);

/// The memory of a CPU storage that a kernel made, as memory of the device: taken over when this arena gave it out, else (older memory, or
/// no arena) copied.
c10::DataPtr adopt_memory(c10::StorageImpl& cpu, Stream& stream, const TraceArena* arena);

/// Ready-made CPU arguments of one call: TensorImpls whose storages are pointed at each launch's memory. One per
/// executable is enough, because the compute slot lets one kernel run at a time.
class Frame {
 public:
  explicit Frame(const OpCall& call);

  /// Points the arguments at what `words` name and returns them.
  const std::vector<c10::IValue>& bind(const uint64_t* words);

  /// The CPU view of slot i.
  const at::Tensor& view(size_t i) const { return views_[i]; }

 private:
  struct Pointer {
    c10::StorageImpl* storage;
    int word;
    int64_t offset_bytes;  ///< from the storage's start to the leader's first element
  };
  struct HostScalar {
    int word;
    size_t bytes;
    void* data;
  };
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> views_;
  std::vector<Pointer> pointers_;
  std::vector<HostScalar> host_scalars_;
  std::vector<std::array<uint64_t, 2>> scalar_memory_;
  std::vector<Payload> payloads_;
  /// Slots in lists of optional tensors. A kernel gets such a list by reference, and _unsafe_masked_index writes into it.
  std::vector<std::pair<Place, size_t>> by_reference_;
};

class EmulatedExecutable final : public Executable {
 public:
  EmulatedExecutable(std::shared_ptr<const Program> program, int device);
  void run(const uint64_t* words) override;
  const char* name() const override { return name_.c_str(); }

 private:
  void deliver(const uint64_t* fresh_words);
  void check_meta() const;

  const std::shared_ptr<const Program> owner_;
  const Program& program_;
  const std::string name_;
  const int device_;
  Frame frame_;
  torch::jit::Stack stack_;
};

/// The Programs of this target.
ProgramTarget& emulated_programs();

}  // namespace neuron

// The random generator of a device: Philox4x32-10, counter based.
//
// Note [Philox]
// A random op draws `n` words by taking the range [offset, offset + n) of the stream of words that `seed` defines; which element gets which
// word is the op's affair (csrc/aten/random), so a result depends on seed, offset and element index and on nothing else: not on threads,
// tiles or fusion.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>
#include <utility>

namespace neuron {

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  /// Seeds from the system's entropy and gives the seed.
  uint64_t seed() override;
  /// `offset` must be a multiple of 4, the words of one Philox block.
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;

  /// 16 bytes, uint8, on the CPU: seed and offset as little-endian 64-bit integers, as CUDA's.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  /// Also takes the 8 bytes of a seed alone (offset 0).
  void set_state(const c10::TensorImpl& new_state) override;

  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) override;

  /// Takes `n` words, rounded up to whole blocks, and gives {seed, offset of the first}. Takes the generator's mutex.
  std::pair<uint64_t, uint64_t> reserve(uint64_t n);

  static c10::DeviceType device_type() { return c10::kPrivateUse1; }

 private:
  NeuronGenerator* clone_impl() const override;

  /// Shared between generators by graphsafe_set_state().
  struct State : c10::intrusive_ptr_target {
    uint64_t seed = 0;
    uint64_t offset = 0;
  };
  c10::intrusive_ptr<State> state_;
};

/// The device's own generator, made at the first call and kept for ever; does not open the device.
const at::Generator& default_generator(int device);

/// `generator`, or the default one of `device`. Throws when it belongs to another device.
NeuronGenerator* generator_or_default(const std::optional<at::Generator>& generator, int device);

}  // namespace neuron

#include "csrc/aten/generator.h"

#include <ATen/Functions.h>
#include <ATen/Utils.h>

#include <array>
#include <cstring>
#include <mutex>

#include "csrc/aten/guard.h"
#include "csrc/aten/recorder.h"

namespace neuron {

namespace {

constexpr uint64_t kBlock = 4;  // words of one Philox4x32 block
constexpr int64_t kSeedBytes = sizeof(uint64_t);
constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

}  // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device, uint64_t seed)
    : GeneratorImpl(c10::Device(c10::kPrivateUse1, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(c10::make_intrusive<State>()) {
  state_->seed = seed;
}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

uint64_t NeuronGenerator::current_seed() const { return state_->seed; }

uint64_t NeuronGenerator::seed() {
  const uint64_t fresh = c10::detail::getNonDeterministicRandom();
  set_current_seed(fresh);
  return fresh;
}

void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % kBlock == 0, "The offset of a neuron generator must be a multiple of ", kBlock, ", but got ", offset, ".");
  state_->offset = offset;
}

uint64_t NeuronGenerator::get_offset() const { return state_->offset; }

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte, {}, {}, {}, {});
  std::memcpy(state.mutable_data_ptr(), &state_->seed, sizeof(uint64_t));
  std::memcpy(state.mutable_data_ptr<uint8_t>() + kSeedBytes, &state_->offset, sizeof(uint64_t));
  return state.getIntrusivePtr();
}

void NeuronGenerator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  const int64_t bytes = new_state.numel();
  TORCH_CHECK(bytes == kStateBytes || bytes == kSeedBytes, "RNG state is wrong size: a neuron generator's state has ", kStateBytes,
              " bytes (seed, offset), but got ", bytes, ".");
  const auto* data = static_cast<const uint8_t*>(new_state.data());
  uint64_t seed = 0;
  uint64_t offset = 0;
  std::memcpy(&seed, data, sizeof(seed));
  if (bytes == kStateBytes) std::memcpy(&offset, data + kSeedBytes, sizeof(offset));
  set_current_seed(seed);
  set_offset(offset);
}

c10::intrusive_ptr<c10::GeneratorImpl> NeuronGenerator::graphsafe_get_state() const {
  auto handle = c10::make_intrusive<NeuronGenerator>(device().index());
  handle->state_ = state_;
  return handle;
}

void NeuronGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) {
  auto* other = dynamic_cast<NeuronGenerator*>(new_state.get());
  TORCH_CHECK(other, "Expected the state of a neuron generator, as graphsafe_get_state() gives it.");
  state_ = other->state_;
}

std::pair<uint64_t, uint64_t> NeuronGenerator::reserve(uint64_t n) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t start = state_->offset;
  const uint64_t taken = (n + kBlock - 1) / kBlock * kBlock;
  state_->offset += taken;
  if (Recorder* recorder = Recorder::current()) [[unlikely]] {
    if (default_generator(device().index()).unsafeGetGeneratorImpl() == this) recorder->drew(state_->seed, start, taken);
  }
  return {state_->seed, start};
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index(), state_->seed);
  copy->state_->offset = state_->offset;
  return copy;
}

const at::Generator& default_generator(int device) {
  // Leaked, as streams are: a thread may draw while the process exits.
  static auto* generators = new std::array<at::Generator, kMaxDevices>();
  static auto* made = new std::array<std::once_flag, kMaxDevices>();
  check_device(device);
  std::call_once((*made)[device],
                 [device] { (*generators)[device] = at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(device)); });
  return (*generators)[device];
}

NeuronGenerator* generator_or_default(const std::optional<at::Generator>& generator, int device) {
  if (!generator || !generator->defined()) return default_generator(device).get<NeuronGenerator>();
  TORCH_CHECK(generator->device().type() == c10::kPrivateUse1, "Expected a 'neuron' device type for generator but found '",
              generator->device().type(), "'. Make one with torch.Generator(device=\"neuron\").");
  TORCH_CHECK(generator->device().index() == device, "Expected a generator on neuron:", device, " but found one on ", generator->device(),
              ".");
  return generator->get<NeuronGenerator>();
}

}  // namespace neuron

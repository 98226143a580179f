#include "csrc/aten/guard.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "csrc/aten/autocast.h"
#include "csrc/aten/interrupt.h"
#include "csrc/runtime/event.h"
#include "csrc/runtime/target.h"

namespace neuron {

void (*on_bad_fork)() = nullptr;

namespace {

constexpr int kStreamsPerPriority = 32;
constexpr int kStreamIds = 3 * kStreamsPerPriority;

struct ThreadState {
  int device = 0;
  std::array<Stream*, kMaxDevices> streams{};  // null: the default stream, not looked up yet
};
thread_local ThreadState thread_state;

struct DeviceStreams {
  std::mutex mutex;
  std::array<std::atomic<Stream*>, kStreamIds> by_id{};
  std::array<std::atomic<uint32_t>, 2> next{};  // how many streams of each priority were handed out
};

/// Leaked: threads may outlive static destructors.
DeviceStreams& streams_of(int device) {
  static auto* table = new std::array<DeviceStreams, kMaxDevices>();
  return (*table)[device];
}

std::atomic<bool> bad_fork{false};

void after_fork_in_child() {
  if (!target_is_open()) return;
  bad_fork = true;
  thread_state.streams.fill(nullptr);  // so that current_stream() takes its slow path, which checks
  if (on_bad_fork) on_bad_fork();
}

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, after_fork_in_child);

bool valid_id(int64_t id) { return id == 0 || (id >= kStreamsPerPriority && id < kStreamIds); }
int priority_of(int64_t id) { return id >= 2 * kStreamsPerPriority ? kHighestPriority : kLowestPriority; }

/// Stream `id` of `device`, made if it is not there yet.
Stream* find_or_make(int device, int64_t id) {
  check_fork();
  auto& streams = streams_of(device);
  if (Stream* stream = streams.by_id[id].load(std::memory_order_acquire)) return stream;
  check_device(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  if (Stream* stream = streams.by_id[id].load(std::memory_order_acquire)) return stream;
  Stream* stream = target().new_stream(device, id, priority_of(id));
  streams.by_id[id].store(stream, std::memory_order_release);
  return stream;
}

c10::Stream make_c10(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)), id);
}

/// The next pooled stream of a priority; not made before it is used.
c10::Stream from_pool(int device, bool high) {
  check_device(device);
  const uint32_t index = streams_of(device).next[high]++ % kStreamsPerPriority;
  const c10::Stream stream = make_c10(device, (high ? 2 : 1) * kStreamsPerPriority + index);
  stream_of(stream);
  return stream;
}

/// Device of a c10::Device whose index may be left out.
int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

}  // namespace

c10::DeviceIndex visible_devices() noexcept { return static_cast<c10::DeviceIndex>(std::min(device_count(), kMaxDevices)); }

void check_device(int64_t device) {
  const int count = visible_devices();
  if (device >= 0 && device < count) return;
  if (count == 0) target();  // knows why there is none
  TORCH_CHECK(false, "Invalid device index ", device, ": this process has ", count, " neuron device(s), so it must be in [0, ", count,
              "). NEURON_RT_VISIBLE_CORES, NEURON_RT_NUM_CORES and TORCH_NEURONX_EMULATED_INSTANCE decide how many there are.");
}

int current_device() noexcept { return thread_state.device; }

int exchange_device(int device) {
  const int previous = thread_state.device;
  if (device == previous) return previous;
  check_device(device);
  thread_state.device = device;
  return previous;
}

Stream* current_stream(int device) {
  Stream*& stream = thread_state.streams[device];
  if (!stream) [[unlikely]] {
    stream = find_or_make(device, 0);
    set_default_autocast_dtype();
  }
  return stream;
}

void check_stream(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::kPrivateUse1, "Expected a stream of a neuron device, but got ", stream, ".");
  check_device(stream.device_index());
  TORCH_CHECK(valid_id(stream.id()), "Unknown stream id ", stream.id(), " on neuron:", static_cast<int>(stream.device_index()),
              ". A stream comes from torch.neuron.Stream(), current_stream() or default_stream(); it cannot be made from another backend's "
              "handle.");
}

Stream* stream_of(c10::Stream stream) {
  check_stream(stream);
  return find_or_make(stream.device_index(), stream.id());
}

c10::Stream to_c10(const Stream* stream) { return make_c10(stream->device, stream->id); }

std::vector<Stream*> open_streams(int device) {
  std::vector<Stream*> found;
  if (!target_is_open()) return found;
  for (auto& slot : streams_of(device).by_id)
    if (Stream* stream = slot.load(std::memory_order_acquire)) found.push_back(stream);
  return found;
}

void synchronize_device(int device) {
  interrupt("a synchronisation");
  check_device(device);
  check_fork();
  const auto streams = open_streams(device);
  for (Stream* stream : streams) stream->drain();
  for (Stream* stream : streams) stream->raise_pending();
}

bool in_bad_fork() noexcept { return bad_fork.load(std::memory_order_relaxed); }

void check_fork() {
  TORCH_CHECK(!in_bad_fork(),
              "Cannot use neuron in a forked subprocess: the parent process had used the device before the fork. To use neuron with "
              "multiprocessing, use the 'spawn' start method (torch.multiprocessing.set_start_method(\"spawn\"), or "
              "DataLoader(multiprocessing_context=\"spawn\")), or fork before the first use of the device.");
}

namespace {

/// What an opaque c10 event points to.
struct RecordedEvent {
  explicit RecordedEvent(bool timing) : event(timing) {}
  Event event;
  int device = -1;
};

RecordedEvent& recorded(void* event) {
  TORCH_CHECK_VALUE(event, "This event was never recorded on a neuron stream.");
  return *static_cast<RecordedEvent*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    check_type(device);
    return make_device(exchange_device(index_of(device)));
  }
  c10::Device getDevice() const override { return make_device(current_device()); }
  void setDevice(c10::Device device) const override {
    check_type(device);
    exchange_device(index_of(device));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < kMaxDevices) thread_state.device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return visible_devices(); }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability all;
    // Quantized tensors have kernels on the CPU only where their Quantizer is made for the CPU; they do not move to this device.
    all.capability_data.supported_scalar_types.has_QInt8 = 0;
    all.capability_data.supported_scalar_types.has_QUInt8 = 0;
    all.capability_data.supported_scalar_types.has_QInt32 = 0;
    return all;
  }

  // ---- streams ----

  c10::Stream getStream(c10::Device device) const override {
    const int index = index_of(device);
    check_device(index);
    const Stream* stream = thread_state.streams[index];
    return make_c10(index, stream ? stream->id : 0);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    const int index = index_of(device);
    check_device(index);
    return make_c10(index, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override { return from_pool(index_of(device), high); }
  c10::Stream getNewStream(c10::Device device, int priority) const override { return from_pool(index_of(device), priority < 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(stream.device());
    thread_state.streams[stream.device_index()] = stream.id() == 0 ? nullptr : stream_of(stream);
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return stream_of(stream); }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream)->query(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    interrupt("a synchronisation");
    stream_of(stream)->synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize_device(device < 0 ? current_device() : device); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    c10::getDeviceAllocator(c10::kPrivateUse1)->recordStream(data, stream);
  }

  // ---- events ----

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device, const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    interrupt("an event");
    Stream& target_stream = *stream_of(stream);
    if (!*event) *event = new RecordedEvent(flag == c10::EventFlag::BACKEND_DEFAULT);
    auto& record = recorded(*event);
    record.event.record(target_stream);
    record.device = target_stream.device;
  }
  void block(void* event, const c10::Stream& stream) const override {
    interrupt("an event");
    if (event) recorded(event).event.block(*stream_of(stream));
  }
  bool queryEvent(void* event) const override { return !event || recorded(event).event.query(); }
  void synchronizeEvent(void* event) const override {
    interrupt("a synchronisation");
    if (event) recorded(event).event.synchronize();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<RecordedEvent*>(event); }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const auto& first = recorded(start);
    const auto& second = recorded(end);
    TORCH_CHECK_VALUE(first.event.timing() && second.event.timing(), "Both events must be created with argument 'enable_timing=True'.");
    TORCH_CHECK(first.device == second.device, "Both events must be recorded on the same device, but they are on neuron:", first.device,
                " and neuron:", second.device, ".");
    TORCH_CHECK(first.event.time_ns() && second.event.time_ns(), "Both events must be completed before calculating elapsed time.");
    return static_cast<double>(second.event.time_ns() - first.event.time_ns()) * 1e-6;
  }

 private:
  static c10::Device make_device(int index) { return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)); }
  static void check_type(c10::Device device) {
    TORCH_CHECK(device.type() == c10::kPrivateUse1, "Expected a neuron device, but got ", device, ".");
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

}  // namespace neuron

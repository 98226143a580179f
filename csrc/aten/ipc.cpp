#include "csrc/aten/ipc.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/aten/guard.h"
#include "csrc/runtime/target.h"

namespace neuron {
namespace {

SharedMemory& sharing_of(int device) {
  check_device(device);
  auto* sharing = dynamic_cast<SharedMemory*>(&target().memory(device));
  TORCH_CHECK_NOT_IMPLEMENTED(sharing, "Memory of neuron:", device, " cannot be shared between processes; send tensor.cpu() instead");
  return *sharing;
}

/// What a received storage holds on to.
struct Received {
  Received(int device, int alive) : device(device), alive(alive) {}
  ~Received() {
    if (mapped) target().memory(device).release(mapped, bytes);
    close(alive);
  }
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;

  const int device;
  const int alive;
  void* mapped = nullptr;
  size_t bytes = 0;
};

/// Lets go once the work that is in the queues now has run. Never waits itself: a tensor may die anywhere, on a stream's own thread too.
void let_go(void* context) {
  std::shared_ptr<Received> received(static_cast<Received*>(context), [](Received* r) {
    if (!in_bad_fork()) delete r;  // else the mapping and the streams are the parent's
  });
  std::vector<std::pair<Stream*, uint64_t>> busy;
  for (Stream* stream : open_streams(received->device)) {
    const uint64_t last = stream->enqueued();
    if (!stream->reached(last)) busy.emplace_back(stream, last);
  }
  if (busy.empty() || in_bad_fork()) return;
  const auto wait = [busy, received] {
    for (auto [stream, last] : busy) stream->drain(last);
  };
  try {
    std::thread(wait).detach();
  } catch (const std::system_error&) {  // no thread to be had
    wait();
  }
}

}  // namespace

SharedRange share_storage(int device, const void* address) {
  const SharedRange range = sharing_of(device).share(address);
  TORCH_CHECK(
      !range.adopted,
      "This tensor was received from another process, which may give its memory back once this process has let go of it. To send it "
      "on, send tensor.clone()");
  TORCH_CHECK(range.fd >= 0, "This storage does not lie in the memory of neuron:", device, ", so it cannot be sent to another process");
  return range;
}

at::Tensor open_shared(int device, int memory, size_t offset, size_t bytes, int alive) {
  auto received = std::make_unique<Received>(device, alive);
  SharedMemory& sharing = sharing_of(device);
  const size_t into_page = offset % static_cast<size_t>(getpagesize());
  try {
    received->mapped = sharing.adopt(memory, offset - into_page, bytes + into_page);
  } catch (const OutOfMemory& full) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "Cannot map a tensor of another process into the memory of neuron:", device, ": ",
                     full.detail);
  }
  received->bytes = bytes + into_page;
  const c10::Device place(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
  void* address = static_cast<char*>(received->mapped) + into_page;
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(address, received.release(), &let_go, place), nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                         c10::scalarTypeToTypeMeta(at::kByte));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes)});
  return tensor;
}

}  // namespace neuron

// Copies between the host and the device, between devices, and on one device.
//
// Bytes cross only between dense memory of the same layout and dtype; what else a copy asks for (conversion, broadcasting,
// strides, conj) is done on the side of the destination's device by the ordinary copy_ overload, as one launch.
#include "csrc/aten/copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/_copy_from_and_resize_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <memory>

#include "csrc/aten/front_end.h"
#include "csrc/aten/guard.h"
#include "csrc/aten/host_allocator.h"
#include "csrc/aten/interrupt.h"
#include "csrc/program/explain.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace neuron {
namespace {

// Up to this size a copy from pageable memory goes through a private buffer, so that the host need not wait.
constexpr size_t kStagedBytes = 64 << 10;

Stream& stream_for(const at::Tensor& tensor) { return *current_stream(tensor.device().index()); }

void* device_data(const at::Tensor& tensor) {
  auto* start = static_cast<char*>(const_cast<void*>(tensor.storage().unsafeGetStorageImpl()->data()));
  return start + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

Memory& memory_of(const at::Tensor& tensor) { return target().memory(tensor.device().index()); }

void finish(Stream& stream) {
  if (C10_UNLIKELY(settings().launch_blocking)) stream.synchronize();
}

/// The copy_ overload on one device.
void launch_copy(const at::Tensor& destination, const at::Tensor& source) {
  static const LaunchedOp copy("aten::copy_", "");
  copy(destination, source, false);
}

bool dense_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_non_overlapping_and_dense() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

/// A dense tensor with the values of `source`, on its device.
at::Tensor dense(const at::Tensor& source) {
  auto plain = source.resolve_conj().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

/// Keeps a pinned block from being reused until `stream` is past this point.
void record_pinned(const at::Tensor& host, const Stream& stream) {
  const auto& pointer = host.storage().data_ptr();
  at::getHostAllocator(at::kPrivateUse1)->record_event(const_cast<void*>(pointer.get()), pointer.get_context(), to_c10(&stream));
}

void bytes_to_device(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  interrupt("a copy from the host");
  auto& stream = stream_for(destination);
  auto& memory = memory_of(destination);
  void* to = device_data(destination);
  const void* from = source.const_data_ptr();
  size_t bytes = source.nbytes();
  note_bytes(CopyKind::host_to_device, bytes);
  if (non_blocking && is_pinned(from)) {
    stream.call([=, &memory] { memory.write(to, from, bytes); });
    record_pinned(source, stream);
  } else if (bytes <= kStagedBytes) {
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    stream.call([=, &memory] { memory.write(to, staged->data(), bytes); });
  } else {
    // The caller may change its memory when we return.
    stream.drain(stream.call([=, &memory] { memory.write(to, from, bytes); }));
  }
  finish(stream);
}

void bytes_to_host(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  interrupt("a copy to the host");
  auto& stream = stream_for(source);
  auto& memory = memory_of(source);
  const void* from = device_data(source);
  void* to = destination.mutable_data_ptr();
  size_t bytes = source.nbytes();
  note_bytes(CopyKind::device_to_host, bytes);
  if (non_blocking && is_pinned(to)) {
    stream.call([=, &memory] { memory.read(to, from, bytes); });
    record_pinned(destination, stream);
    return finish(stream);
  }
  note_sync("copy to the host");
  stream.synchronize();
  memory.read(to, from, bytes);
}

void copy_to_device(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  auto host = dense(source);
  if (dense_alike(destination, host)) return bytes_to_device(destination, host, non_blocking);
  auto staged = at::empty_strided(host.sizes(), host.strides(), host.options().device(destination.device()).pinned_memory(false));
  bytes_to_device(staged, host, non_blocking);
  launch_copy(destination, staged);
}

void copy_to_host(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  auto device = dense(source);
  if (dense_alike(destination, device)) return bytes_to_host(destination, device, non_blocking);
  auto staged = at::empty_strided(device.sizes(), device.strides(), device.options().device(at::kCPU));
  bytes_to_host(staged, device, false);
  destination.copy_(staged);
}

void copy_across(const at::Tensor& destination, const at::Tensor& source) {
  auto from = dense(source);
  if (!dense_alike(destination, from)) {
    auto staged = at::empty_strided(from.sizes(), from.strides(), from.options().device(destination.device()));
    copy_across(staged, from);
    return launch_copy(destination, staged);
  }
  interrupt("a copy between devices");
  auto& reader = stream_for(from);
  auto& writer = stream_for(destination);
  writer.wait_for(reader, reader.added());
  auto& memory = memory_of(destination);
  void* to = device_data(destination);
  const void* source_data = device_data(from);
  size_t bytes = from.nbytes();
  uint64_t done = writer.call([=, &memory] { memory.copy(to, source_data, bytes); });
  // The source's memory may be reused in its stream's order: that stream goes on only after the copy.
  reader.wait_for(writer, done);
  note_bytes(CopyKind::device_to_device, bytes);
  finish(writer);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  const bool to_device = self.is_privateuseone(), from_device = source.is_privateuseone();
  // A number on the host is read now, unless it is pinned and a copy that is still queued may be writing it.
  auto readable_number = [&] { return source.is_cpu() && source.dim() == 0 && !(non_blocking && is_pinned(source.const_data_ptr())); };
  if (to_device && (from_device ? self.device() == source.device() : readable_number())) {
    launch_copy(self, source);
    return self;
  }
  // Also raises for shapes that do not broadcast, with copy_'s own words.
  auto expanded = source.expand_as(self);
  if (self.numel() == 0) return self;
  auto compact = expanded.is_non_overlapping_and_dense() ? expanded : source;
  if (to_device && from_device)
    copy_across(self, compact);
  else if (to_device)
    copy_to_device(self, source.is_cpu() ? compact : compact.cpu(), non_blocking);
  else
    copy_to_host(self, compact, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  at::Tensor target = destination;
  return copy_(target, self, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<c10::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<c10::MemoryFormat> memory_format) {
  bool stays = !device || (device->is_privateuseone() && (!device->has_index() || device->index() == self.device().index()));
  if (!stays || (device && !device->has_index() && current_device() != self.device().index()) ||
      layout.value_or(at::kStrided) != at::kStrided || pin_memory.value_or(false)) {
    return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
  }
  static const LaunchedOp op("aten::_to_copy", "");
  auto none = c10::IValue();
  auto results =
      op(self, dtype ? c10::IValue(*dtype) : none, none, none, none, non_blocking, memory_format ? c10::IValue(*memory_format) : none);
  return std::move(results[0]).toTensor();
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  interrupt("item()");
  note_sync("item()");
  stream_for(self).synchronize();
  alignas(16) char bytes[16];
  memory_of(self).read(bytes, device_data(self), self.element_size());
  auto element = at::from_blob(bytes, {}, self.options().device(at::kCPU));
  if (self.is_conj()) element = element.conj();
  if (self.is_neg()) element = element._neg_view();
  return element.item();
}

}  // namespace

void copy_bytes(const at::Tensor& destination, const at::Tensor& source) {
  const size_t bytes = source.nbytes();
  TORCH_CHECK(destination.device() == source.device() && source.is_privateuseone() && destination.nbytes() >= bytes &&
                  destination.is_non_overlapping_and_dense() && source.is_non_overlapping_and_dense(),
              "copy_bytes() needs two dense tensors on one device, the first not smaller than the second.");
  if (bytes == 0) return;
  auto& stream = stream_for(destination);
  auto& memory = memory_of(destination);
  void* to = device_data(destination);
  const void* from = device_data(source);
  stream.call([=, &memory] { memory.copy(to, from, bytes); });
  note_bytes(CopyKind::device_to_device, bytes);
  finish(stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_to_copy", TORCH_FN(to_copy));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

}  // namespace neuron

// The current device and streams of each thread, and the pool that streams come from.
//
// Note [Stream ids]
// Each device has a default stream, id 0, and 32 pooled streams for each of two priorities, handed out in turn and never destroyed.
// The id of a pooled stream says which one it is: bits 0..4 its index, bit 5 set for normal priority (0), bit 6 set for high (-1).
// So normal streams are 32..63 and high ones 64..95, and any other number can be refused.
//
// Note [Opening lazily]
// The autograd engine asks for the device count, the current device and the current stream from scripts that use nothing but the
// CPU. Those questions are answered from thread-local numbers and open nothing; the device is opened by current_stream(), which
// everything that runs or allocates goes through.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

#include "csrc/runtime/stream.h"

namespace neuron {

/// c10::DeviceIndex has 8 bits, so no more than 127 devices can have a name.
constexpr int kMaxDevices = 127;
constexpr int kLowestPriority = 0;
constexpr int kHighestPriority = -1;

/// Devices of this process, at most kMaxDevices. Opens and throws nothing.
c10::DeviceIndex visible_devices() noexcept;

/// Throws c10::Error naming the valid range when `device` is not one of visible_devices().
void check_device(int64_t device);

/// The calling thread's device.
int current_device() noexcept;

/// Makes `device` the calling thread's device and gives the previous one. Throws for an index out of range.
int exchange_device(int device);

/// The calling thread's stream on `device`, which must be in range; opens the device. On the path of every call: one thread-local load.
Stream* current_stream(int device);

/// Throws c10::Error when `stream` belongs to another backend or no stream has its id. Opens nothing.
void check_stream(c10::Stream stream);

/// The stream that `stream` names, made if need be. Throws as check_stream() does.
Stream* stream_of(c10::Stream stream);

c10::Stream to_c10(const Stream* stream);

/// The streams made so far on `device`, the default one first; empty when the device is not open.
std::vector<Stream*> open_streams(int device);

template <class F>
void for_each_stream(int device, F&& visit) {
  for (Stream* stream : open_streams(device)) visit(*stream);
}

/// Waits for all streams of `device`, then raises the pending error, if any. Does nothing when the device is not open.
void synchronize_device(int device);

/// True in a process that was forked after its parent had opened the device; nothing but freeing works there.
bool in_bad_fork() noexcept;

/// Throws c10::Error, naming the remedy, when in_bad_fork().
void check_fork();

/// Called in such a process right after the fork, on its only thread; for the Python module.
extern void (*on_bad_fork)();

}  // namespace neuron

// Requests that the runtime works off by itself: execution and transfers, in the two forms that libnrt has had, or none.
//
// Note [Two forms]
// Runtime 2.30 collects errors in a tracker per core and signals completion by a file descriptor per request. From 2.31 on each request
// has a status word, which the runtime writes when the request completes; 2.32 adds signals to an eventfd of ours, and 2.31 must be asked.
// The functions have the same names in both, so each form is a translation unit of its own (nrt_async_tracker.cpp, nrt_async_status.cpp)
// with its own pointer types.
#pragma once

#include <memory>

#include "csrc/runtime/trainium/nrt.h"

namespace neuron::trainium {

/// A request under way. Everything that it names (tensors, sets, model, host buffer) must stay as it is until wait() has returned.
class Request {
 public:
  virtual ~Request() = default;
  virtual bool done() = 0;
  /// Blocks until it has completed, and gives how it ended. Never longer than the runtime's own time-out for executions.
  virtual NRT_STATUS wait() = 0;
};

/// The queues of one logical core. Each call schedules a request, or gives its status at once when it was refused (the request is null
/// then). A full queue (NRT_QUEUE_FULL) is one such status: wait for an earlier request, then try again. Thread safe.
class AsyncCore {
 public:
  virtual ~AsyncCore() = default;
  virtual NRT_STATUS execute(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, std::unique_ptr<Request>* request) = 0;
  virtual NRT_STATUS write(nrt_tensor_t* to, const void* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) = 0;
  virtual NRT_STATUS read(void* to, nrt_tensor_t* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) = 0;
};

/// The queues of core `vnc`, in the form of the opened library; with AsyncForm::none every request runs at once, on the calling thread.
std::unique_ptr<AsyncCore> open_async_core(int vnc);

// The translation units behind it.
std::unique_ptr<AsyncCore> open_tracker_core(int vnc);
std::unique_ptr<AsyncCore> open_status_core(int vnc);

}  // namespace neuron::trainium

#include "csrc/runtime/trainium/nrt_async.h"

namespace neuron::trainium {
namespace {

class Finished final : public Request {
 public:
  bool done() override { return true; }
  NRT_STATUS wait() override { return NRT_SUCCESS; }
};

/// For runtimes without the asynchronous functions.
class SynchronousCore final : public AsyncCore {
 public:
  NRT_STATUS execute(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, std::unique_ptr<Request>* request) override {
    return finish(nrt().nrt_execute(model, in, out), request);
  }
  NRT_STATUS write(nrt_tensor_t* to, const void* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) override {
    return finish(nrt().nrt_tensor_write(to, from, offset, bytes), request);
  }
  NRT_STATUS read(void* to, nrt_tensor_t* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) override {
    return finish(nrt().nrt_tensor_read(from, to, offset, bytes), request);
  }

 private:
  static NRT_STATUS finish(NRT_STATUS status, std::unique_ptr<Request>* request) {
    if (status == NRT_SUCCESS) *request = std::make_unique<Finished>();
    return status;
  }
};

}  // namespace

std::unique_ptr<AsyncCore> open_async_core(int vnc) {
  switch (nrt().async) {
    case AsyncForm::tracker:
      return open_tracker_core(vnc);
    case AsyncForm::status:
      return open_status_core(vnc);
    case AsyncForm::none:
      break;
  }
  return std::make_unique<SynchronousCore>();
}

}  // namespace neuron::trainium

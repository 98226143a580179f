// Runtime 2.31 and later: a status word per request; from 2.32 on an eventfd that the runtime signals.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "csrc/runtime/trainium/nrt_async.h"

namespace neuron::trainium {
namespace {

extern "C" {
using ExecuteSchedule = NRT_STATUS(nrt_model_t*, const nrt_tensor_set_t*, nrt_tensor_set_t*, int, NRT_STATUS*, nrta_seq_t*);
using TensorWrite = NRT_STATUS(nrt_tensor_t*, const void*, uint64_t, uint64_t, int, int, NRT_STATUS*, nrta_seq_t*);
using TensorRead = NRT_STATUS(void*, nrt_tensor_t*, uint64_t, uint64_t, int, int, NRT_STATUS*, nrta_seq_t*);
using IsCompleted = NRT_STATUS(nrta_seq_t, bool*);
using RegisterCompletion = NRT_STATUS(nrta_seq_t, int);
}

struct Functions {
  ExecuteSchedule* execute = nullptr;
  TensorWrite* write = nullptr;
  TensorRead* read = nullptr;
  IsCompleted* is_completed = nullptr;
  RegisterCompletion* register_completion = nullptr;  // null in 2.31
};

const Functions& functions() {
  static const Functions found = [] {
    Functions f;
    const Nrt& n = nrt();
    n.find("nrta_execute_schedule", f.execute);
    n.find("nrta_tensor_write", f.write);
    n.find("nrta_tensor_read", f.read);
    n.find("nrta_is_completed", f.is_completed);
    n.find("nrta_event_register_seq_id_completion", f.register_completion);
    return f;
  }();
  return found;
}

/// The runtime writes `status` when the request completes, so it stays in place until then.
class StatusRequest final : public Request {
 public:
  ~StatusRequest() override { wait(); }

  bool done() override {
    if (!finished_) {
      bool completed = false;
      const NRT_STATUS asked = functions().is_completed(sequence, &completed);
      if (asked != NRT_SUCCESS) {
        status = asked;
        finished_ = true;
      } else {
        finished_ = completed;
      }
    }
    return finished_;
  }

  NRT_STATUS wait() override {
    if (functions().register_completion && !done()) wait_for_signal();
    while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    return status;
  }

  /// The runtime has refused it: there is nothing to wait for.
  void abandon() { finished_ = true; }

  volatile NRT_STATUS status = NRT_SUCCESS;
  nrta_seq_t sequence = 0;

 private:
  void wait_for_signal() {
    const int signal = eventfd(0, EFD_CLOEXEC);
    if (signal < 0) return;
    if (functions().register_completion(sequence, signal) == NRT_SUCCESS) {
      uint64_t count;
      while (read(signal, &count, sizeof count) < 0 && errno == EINTR) {
      }
    }
    functions().register_completion(sequence, -1);  // the descriptor is about to be another's
    close(signal);
  }

  bool finished_ = false;
};

class StatusCore final : public AsyncCore {
 public:
  explicit StatusCore(int vnc) : vnc_(vnc) {}

  NRT_STATUS execute(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, std::unique_ptr<Request>* request) override {
    return schedule(request, [&](auto& r) { return functions().execute(model, in, out, 0, word(r), &r.sequence); });
  }
  NRT_STATUS write(nrt_tensor_t* to, const void* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) override {
    return schedule(request, [&](auto& r) { return functions().write(to, from, offset, bytes, vnc_, 0, word(r), &r.sequence); });
  }
  NRT_STATUS read(void* to, nrt_tensor_t* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) override {
    return schedule(request, [&](auto& r) { return functions().read(to, from, offset, bytes, vnc_, 1, word(r), &r.sequence); });
  }

 private:
  static NRT_STATUS* word(StatusRequest& request) { return const_cast<NRT_STATUS*>(&request.status); }

  template <class Call>
  NRT_STATUS schedule(std::unique_ptr<Request>* request, Call&& call) {
    auto made = std::make_unique<StatusRequest>();
    const NRT_STATUS status = call(*made);
    if (status == NRT_SUCCESS)
      *request = std::move(made);
    else
      made->abandon();
    return status;
  }

  const int vnc_;
};

}  // namespace

std::unique_ptr<AsyncCore> open_status_core(int vnc) { return std::make_unique<StatusCore>(vnc); }

}  // namespace neuron::trainium

// Runtime 2.30: errors are collected by a tracker, and each request has a descriptor that becomes readable when it completes.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "csrc/runtime/trainium/nrt_async.h"

namespace neuron::trainium {
namespace {

extern "C" {
struct nrta_error_tracker_t;
struct nrta_error_t {
  nrta_seq_t seq_id;
  uint64_t error_code;
};
using ExecuteSchedule = NRT_STATUS(nrt_model_t*, const nrt_tensor_set_t*, nrt_tensor_set_t*, int, nrta_error_tracker_t*, nrta_seq_t*);
using TensorWrite = NRT_STATUS(nrt_tensor_t*, const void*, uint64_t, uint64_t, int, nrta_error_tracker_t*, nrta_seq_t*);
using TensorRead = NRT_STATUS(void*, nrt_tensor_t*, uint64_t, uint64_t, int, nrta_error_tracker_t*, nrta_seq_t*);
using IsCompleted = NRT_STATUS(nrta_seq_t, bool*);
using CompletionHandle = NRT_STATUS(nrta_seq_t, int*);
using TrackerCreate = NRT_STATUS(uint32_t, nrta_error_tracker_t**);
using TrackerDestroy = void(nrta_error_tracker_t*);
using TrackerList = NRT_STATUS(nrta_error_tracker_t*, const nrta_error_t**, size_t*);
}

struct Functions {
  ExecuteSchedule* execute = nullptr;
  TensorWrite* write = nullptr;
  TensorRead* read = nullptr;
  IsCompleted* is_completed = nullptr;
  CompletionHandle* completion_handle = nullptr;
  TrackerCreate* create = nullptr;
  TrackerDestroy* destroy = nullptr;
  TrackerList* list = nullptr;
};

const Functions& functions() {
  static const Functions found = [] {
    Functions f;
    const Nrt& n = nrt();
    n.find("nrta_execute_schedule", f.execute);
    n.find("nrta_tensor_write", f.write);
    n.find("nrta_tensor_read", f.read);
    n.find("nrta_is_completed", f.is_completed);
    n.find("nrta_get_completion_handle", f.completion_handle);
    n.find("nrta_error_tracker_create", f.create);
    n.find("nrta_error_tracker_destroy", f.destroy);
    n.find("nrta_error_tracker_get_list", f.list);
    return f;
  }();
  return found;
}

/// The errors of a core's requests. A list that was fetched is taken to be consumed, so what it holds is kept until the request asks.
class Tracker {
 public:
  explicit Tracker(int vnc) { check(functions().create(static_cast<uint32_t>(vnc), &tracker_), "creating the error tracker of a core"); }
  ~Tracker() { functions().destroy(tracker_); }
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  nrta_error_tracker_t* get() const { return tracker_; }

  NRT_STATUS status_of(nrta_seq_t sequence) {
    std::lock_guard lock(mutex_);
    const nrta_error_t* errors = nullptr;
    size_t count = 0;
    const NRT_STATUS asked = functions().list(tracker_, &errors, &count);
    if (asked != NRT_SUCCESS) return asked;
    for (size_t i = 0; i < count; ++i) seen_[errors[i].seq_id] = static_cast<NRT_STATUS>(errors[i].error_code);
    auto found = seen_.find(sequence);
    if (found == seen_.end()) return NRT_SUCCESS;
    const NRT_STATUS status = found->second;
    seen_.erase(found);
    return status;
  }

 private:
  nrta_error_tracker_t* tracker_ = nullptr;
  std::mutex mutex_;
  std::map<nrta_seq_t, NRT_STATUS> seen_;
};

class TrackedRequest final : public Request {
 public:
  TrackedRequest(std::shared_ptr<Tracker> tracker, nrta_seq_t sequence) : tracker_(std::move(tracker)), sequence_(sequence) {}
  ~TrackedRequest() override { wait(); }

  bool done() override {
    if (finished_) return true;
    bool completed = false;
    const NRT_STATUS asked = functions().is_completed(sequence_, &completed);
    if (asked == NRT_SUCCESS && !completed) return false;
    status_ = asked == NRT_SUCCESS ? tracker_->status_of(sequence_) : asked;
    return finished_ = true;
  }

  NRT_STATUS wait() override {
    if (!done()) wait_for_signal();
    while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    return status_;
  }

 private:
  void wait_for_signal() {
    int signal = -1;
    if (functions().completion_handle(sequence_, &signal) != NRT_SUCCESS || signal < 0) return;
    pollfd entry{signal, POLLIN, 0};
    while (poll(&entry, 1, -1) < 0 && errno == EINTR) {
    }
    close(signal);
  }

  const std::shared_ptr<Tracker> tracker_;
  const nrta_seq_t sequence_;
  NRT_STATUS status_ = NRT_SUCCESS;
  bool finished_ = false;
};

class TrackerCore final : public AsyncCore {
 public:
  explicit TrackerCore(int vnc) : tracker_(std::make_shared<Tracker>(vnc)) {}

  NRT_STATUS execute(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, std::unique_ptr<Request>* request) override {
    return schedule(request, [&](auto* tracker, auto* seq) { return functions().execute(model, in, out, 0, tracker, seq); });
  }
  NRT_STATUS write(nrt_tensor_t* to, const void* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) override {
    return schedule(request, [&](auto* tracker, auto* seq) { return functions().write(to, from, offset, bytes, 0, tracker, seq); });
  }
  NRT_STATUS read(void* to, nrt_tensor_t* from, size_t offset, size_t bytes, std::unique_ptr<Request>* request) override {
    return schedule(request, [&](auto* tracker, auto* seq) { return functions().read(to, from, offset, bytes, 1, tracker, seq); });
  }

 private:
  template <class Call>
  NRT_STATUS schedule(std::unique_ptr<Request>* request, Call&& call) {
    nrta_seq_t sequence = 0;
    const NRT_STATUS status = call(tracker_->get(), &sequence);
    if (status == NRT_SUCCESS) *request = std::make_unique<TrackedRequest>(tracker_, sequence);
    return status;
  }

  std::shared_ptr<Tracker> tracker_;
};

}  // namespace

std::unique_ptr<AsyncCore> open_tracker_core(int vnc) { return std::make_unique<TrackerCore>(vnc); }

}  // namespace neuron::trainium

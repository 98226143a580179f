// The asynchronous functions. STANDIN_FORM_A builds the error-tracker form of runtime 2.30; otherwise the status-pointer form of 2.31 on.
//
// Each (core, unit, queue) has a thread that works its requests off in order, and room for STANDIN_NRT_QUEUE_DEPTH (default 8) of them.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "tests/standin_sdk/libnrt/faults.h"

namespace standin {
namespace {

struct Request {
  nrta_seq_t sequence = 0;
  const char* function = "";
  std::function<NRT_STATUS()> work;
  std::function<void(nrta_seq_t, NRT_STATUS)> report;
};

class Queue {
 public:
  Queue(int core, nrta_xu_t unit, int queue)
      : unit_id_(static_cast<uint64_t>((core * NRTA_XU_COLLECTIVES + unit) * 4 + queue)), thread_([this] { run(); }) {
    thread_.detach();
  }

  NRT_STATUS add(Request request, nrta_seq_t* sequence) {
    static const auto depth = static_cast<size_t>(number_from_environment("STANDIN_NRT_QUEUE_DEPTH", 8));
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= depth) return NRT_QUEUE_FULL;
    request.sequence = *sequence = (unit_id_ << 48) | ++last_;
    waiting_.push_back(std::move(request));
    changed_.notify_all();
    return NRT_SUCCESS;
  }

  NRT_STATUS is_completed(nrta_seq_t sequence, bool* done) {
    std::lock_guard lock(mutex_);
    const uint64_t number = sequence & ((uint64_t{1} << 48) - 1);
    if (number == 0 || number > last_) return NRT_INVALID;
    *done = number <= completed_;
    return NRT_SUCCESS;
  }

  /// Signals `fd` when the request has completed; at once when it has. -1: no longer.
  NRT_STATUS signal(nrta_seq_t sequence, int fd) {
    std::lock_guard lock(mutex_);
    const uint64_t number = sequence & ((uint64_t{1} << 48) - 1);
    if (number == 0 || number > last_) return NRT_INVALID;
    if (fd < 0)
      signals_.erase(number);
    else if (number <= completed_)
      ring(fd);
    else
      signals_[number] = fd;
    return NRT_SUCCESS;
  }

  nrta_seq_t completed() {
    std::lock_guard lock(mutex_);
    return (unit_id_ << 48) | completed_;
  }

  uint64_t unit_id() const { return unit_id_; }

 private:
  static void ring(int fd) {
    const uint64_t one = 1;
    if (write(fd, &one, sizeof one) != sizeof one) log_error("nrta_event", "cannot signal an eventfd");
#ifdef STANDIN_FORM_A
    close(fd);  // a duplicate of our own, see nrta_get_completion_handle
#endif
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      Request& request = waiting_.front();
      lock.unlock();
      NRT_STATUS status = completion_fault(request.function);
      if (status == NRT_SUCCESS) status = request.work();
      request.report(request.sequence, status);
      lock.lock();
      completed_ = request.sequence & ((uint64_t{1} << 48) - 1);
      waiting_.pop_front();
      if (auto found = signals_.find(completed_); found != signals_.end()) {
        ring(found->second);
        signals_.erase(found);
      }
    }
  }

  const uint64_t unit_id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> waiting_;
  uint64_t last_ = 0, completed_ = 0;
  std::map<uint64_t, int> signals_;
  std::thread thread_;
};

std::mutex queues_mutex;
std::map<std::tuple<int, int, int>, Queue*>& queues() {
  static auto* const all = new std::map<std::tuple<int, int, int>, Queue*>;
  return *all;
}

Queue& queue_of(int core, nrta_xu_t unit, int number) {
  std::lock_guard lock(queues_mutex);
  auto& queue = queues()[{core, unit, number}];
  if (!queue) queue = new Queue(core, unit, number);
  return *queue;
}

Queue* queue_of(nrta_seq_t sequence) {
  std::lock_guard lock(queues_mutex);
  for (auto& [key, queue] : queues()) {
    if (queue->unit_id() == sequence >> 48) return queue;
  }
  return nullptr;
}

bool inside(const nrt_tensor_t* tensor, uint64_t offset, uint64_t size) {
  return tensor && offset <= tensor->bytes && size <= tensor->bytes - offset;
}

using Report = std::function<void(nrta_seq_t, NRT_STATUS)>;

NRT_STATUS schedule_execution(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, Report report, nrta_seq_t* sequence) {
  if (!model) return NRT_INVALID_HANDLE;
  const auto* inputs = static_cast<const TensorSet*>(in);
  auto* outputs = static_cast<TensorSet*>(out);
  return queue_of(model->core, NRTA_XU_COMPUTE, 0)
      .add({0, "nrta_execute_schedule", [=] { return execute_model(model, inputs, outputs); }, std::move(report)}, sequence);
}

NRT_STATUS schedule_copy(const char* function, nrt_tensor_t* tensor, uint64_t offset, uint64_t size, int queue,
                         std::function<void(char*)> work, Report report, nrta_seq_t* sequence) {
  if (!inside(tensor, offset, size) || queue < 0 || queue > 1) return NRT_INVALID;
  char* data = tensor->storage->data + tensor->offset + offset;
  return queue_of(tensor->storage->core, NRTA_XU_TENSOR_OP, queue)
      .add({0, function,
            [=] {
              work(data);
              return NRT_SUCCESS;
            },
            std::move(report)},
           sequence);
}

}  // namespace
}  // namespace standin

using namespace standin;

STANDIN_EXPORT NRT_STATUS nrta_is_completed(nrta_seq_t sequence, bool* done) {
  STANDIN_ENTER("nrta_is_completed");
  Queue* queue = queue_of(sequence);
  return queue ? queue->is_completed(sequence, done) : NRT_INVALID;
}

STANDIN_EXPORT NRT_STATUS nrta_get_sequence(uint32_t lnc, nrta_xu_t unit, int queue, nrta_seq_t* sequence) {
  STANDIN_ENTER("nrta_get_sequence");
  *sequence = queue_of(static_cast<int>(lnc), unit, queue).completed();
  return NRT_SUCCESS;
}

#ifdef STANDIN_FORM_A

// ---- runtime 2.30: errors in a tracker ------------------------------------------------------------------------------------

extern "C" {
struct nrta_error_t {
  nrta_seq_t seq_id;
  uint64_t error_code;
};
}
struct nrta_error_tracker_t {
  std::mutex mutex;
  std::vector<nrta_error_t> found, given;
};

namespace {
Report report_to(nrta_error_tracker_t* tracker) {
  return [tracker](nrta_seq_t sequence, NRT_STATUS status) {
    if (status == NRT_SUCCESS) return;
    std::lock_guard lock(tracker->mutex);
    tracker->found.push_back({sequence, static_cast<uint64_t>(status)});
  };
}
}  // namespace

STANDIN_EXPORT NRT_STATUS nrta_error_tracker_create(uint32_t, nrta_error_tracker_t** tracker) {
  STANDIN_ENTER("nrta_error_tracker_create");
  *tracker = new nrta_error_tracker_t;
  return NRT_SUCCESS;
}
STANDIN_EXPORT void nrta_error_tracker_destroy(nrta_error_tracker_t* tracker) { delete tracker; }
STANDIN_EXPORT NRT_STATUS nrta_error_tracker_get_list(nrta_error_tracker_t* tracker, const nrta_error_t** list, size_t* count) {
  STANDIN_ENTER("nrta_error_tracker_get_list");
  std::lock_guard lock(tracker->mutex);
  tracker->given = std::move(tracker->found);
  tracker->found.clear();
  *list = tracker->given.data();
  *count = tracker->given.size();
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrta_execute_schedule(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, int,
                                                nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
  STANDIN_ENTER("nrta_execute_schedule");
  return schedule_execution(model, in, out, report_to(tracker), sequence);
}
STANDIN_EXPORT NRT_STATUS nrta_tensor_write(nrt_tensor_t* tensor, const void* from, uint64_t offset, uint64_t size, int queue,
                                            nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
  STANDIN_ENTER("nrta_tensor_write");
  return schedule_copy(
      "nrta_tensor_write", tensor, offset, size, queue, [=](char* data) { memcpy(data, from, size); }, report_to(tracker), sequence);
}
STANDIN_EXPORT NRT_STATUS nrta_tensor_read(void* to, nrt_tensor_t* tensor, uint64_t offset, uint64_t size, int queue,
                                           nrta_error_tracker_t* tracker, nrta_seq_t* sequence) {
  STANDIN_ENTER("nrta_tensor_read");
  return schedule_copy(
      "nrta_tensor_read", tensor, offset, size, queue, [=](char* data) { memcpy(to, data, size); }, report_to(tracker), sequence);
}
/// A descriptor that becomes readable when the request completes; the caller closes it.
STANDIN_EXPORT NRT_STATUS nrta_get_completion_handle(nrta_seq_t sequence, int* fd) {
  STANDIN_ENTER("nrta_get_completion_handle");
  Queue* queue = queue_of(sequence);
  if (!queue) return NRT_INVALID;
  *fd = eventfd(0, EFD_CLOEXEC);
  // The queue signals a duplicate that it keeps: the caller may close its own at any time.
  return queue->signal(sequence, dup(*fd));
}

#else

// ---- runtime 2.31 and later: a status word per request ----------------------------------------------------------------------

namespace {
Report report_to(NRT_STATUS* word) {
  return
      [word](nrta_seq_t, NRT_STATUS status) { __atomic_store_n(reinterpret_cast<int*>(word), static_cast<int>(status), __ATOMIC_RELEASE); };
}
}  // namespace

STANDIN_EXPORT NRT_STATUS nrta_execute_schedule(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out, int,
                                                NRT_STATUS* status, nrta_seq_t* sequence) {
  STANDIN_ENTER("nrta_execute_schedule");
  return schedule_execution(model, in, out, report_to(status), sequence);
}
STANDIN_EXPORT NRT_STATUS nrta_tensor_write(nrt_tensor_t* tensor, const void* from, uint64_t offset, uint64_t size, int, int queue,
                                            NRT_STATUS* status, nrta_seq_t* sequence) {
  STANDIN_ENTER("nrta_tensor_write");
  return schedule_copy(
      "nrta_tensor_write", tensor, offset, size, queue, [=](char* data) { memcpy(data, from, size); }, report_to(status), sequence);
}
STANDIN_EXPORT NRT_STATUS nrta_tensor_read(void* to, nrt_tensor_t* tensor, uint64_t offset, uint64_t size, int, int queue,
                                           NRT_STATUS* status, nrta_seq_t* sequence) {
  STANDIN_ENTER("nrta_tensor_read");
  return schedule_copy(
      "nrta_tensor_read", tensor, offset, size, queue, [=](char* data) { memcpy(to, data, size); }, report_to(status), sequence);
}
STANDIN_EXPORT NRT_STATUS nrta_event_register_seq_id_completion(nrta_seq_t sequence, int fd) {
  STANDIN_ENTER("nrta_event_register_seq_id_completion");
  Queue* queue = queue_of(sequence);
  return queue ? queue->signal(sequence, fd) : NRT_INVALID;
}

#endif

// What a call of torch.distributed returns: a handle of one or more operations.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/distributed/operation.h"

namespace neuron::distributed {

class Work final : public c10d::Work {
 public:
  struct Parts {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    int rank = 0;
    int device = 0;
    bool blocks_host = false;                            ///< wait() waits for the end: barrier
    std::vector<std::shared_ptr<Operation>> operations;  ///< all must be done
    std::vector<at::Tensor> outputs;
    StreamPoint tail{nullptr, 0};  ///< what a side stream does with the results, if anything
    Stream* end_stream = nullptr;  ///< of the group: futures are completed on it
  };
  explicit Work(Parts parts);

  /// Whether the results can be used on the current stream: all is done, or wait() has made a stream wait for it. (PyTorch's documentation
  /// of Work.is_completed() says so of devices with streams.) Never waits.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;  ///< waits for the message
  std::vector<at::Tensor> result() override { return parts_.outputs; }

  /// Makes the current stream wait. With a time-out, and for a barrier, the host waits too. Throws when an operation has failed already.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }

  /// Completed at once, in stream order: what follows it on the streams of its waiters runs after the collective. Its value is the outputs.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return getFuture(); }

  uint64_t getSequencenumber() const override;
  float getDuration() const override;  ///< milliseconds from when it could start

  const std::vector<std::shared_ptr<Operation>>& operations() const { return parts_.operations; }

 private:
  bool done() const;
  void order(Stream& stream) const;
  void wait_on_host(std::chrono::milliseconds timeout) const;

  const Parts parts_;
  std::atomic<bool> awaited_{false};  ///< wait() has returned
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace neuron::distributed

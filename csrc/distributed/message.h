// Send and receive between ranks of one host, over a Channel's mailboxes.
//
// Note [Messages]
// A sender posts a mail: the data when it is small, else where it lies. The receiver takes the oldest mail of the tag that it wants; the
// sender is done when the mail was small or has been taken. Which mail a receive gets depends only on the order of the sends and of the
// receives.
#pragma once

#include <atomic>
#include <string>

#include "csrc/distributed/channel.h"
#include "csrc/distributed/operation.h"

namespace neuron::distributed {

constexpr int kAnySource = -1;

class Send final : public Operation {
 public:
  Send(Channel& channel, Buffer buffer, uint64_t dtype, int to, int64_t tag);
  Progress step(bool light) override;
  std::string awaited() const override;
  bool needs_rank(int rank) const override { return rank == to_; }
  /// Mails are posted in the order of the sends: the receiver takes the oldest that is there.
  bool precedes(const Operation&) const override { return mail_ == nullptr; }

 private:
  Channel& channel_;
  const Buffer buffer_;
  const uint64_t dtype_;
  const int to_;
  const int64_t tag_;
  Mail* mail_ = nullptr;
};

class Receive final : public Operation {
 public:
  /// `from` may be kAnySource.
  Receive(Channel& channel, Buffer buffer, uint64_t dtype, int from, int64_t tag);
  Progress step(bool light) override;
  std::string awaited() const override;
  bool needs_rank(int rank) const override;
  /// A mail that arrives now is the earlier receive's, when both could take it.
  bool precedes(const Operation& later) const override;

  /// Rank that it came from, once done.
  int source() const { return source_.load(std::memory_order_acquire); }

 private:
  Mail* find(int from) const;
  void take(Mail& mail, int from);

  Channel& channel_;
  const Buffer buffer_;
  const uint64_t dtype_;
  const int from_;
  const int64_t tag_;
  std::atomic<int> source_{kAnySource};
};

}  // namespace neuron::distributed

#include "csrc/distributed/message.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "csrc/distributed/modelled.h"
#include "csrc/runtime/large_copy.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/shared_memory.h"

namespace neuron::distributed {

Send::Send(Channel& channel, Buffer buffer, uint64_t dtype, int to, int64_t tag)
    : channel_(channel), buffer_(buffer), dtype_(dtype), to_(to), tag_(tag) {
  heavy = buffer.bytes > kMailBytes;
}

std::string Send::awaited() const { return channel_.describe(to_) + ", to receive the message with tag " + std::to_string(tag_); }

Operation::Progress Send::step(bool) {
  const bool small = buffer_.bytes <= kMailBytes;
  if (!mail_) {
    for (int i = 0; i < kMails && !mail_; ++i) {
      Mail& mail = channel_.mail(channel_.rank, to_, i);
      if (mail.state.load(std::memory_order_seq_cst) == Mail::empty) mail_ = &mail;
    }
    if (!mail_) return Progress::none;
    channel_.note_entered(record->describe());
    mail_->direct = !small;
    mail_->tag = tag_;
    mail_->order = record->sequence;
    mail_->bytes = buffer_.bytes;
    mail_->dtype = dtype_;
    mail_->epoch = segments_released.load(std::memory_order_seq_cst);
    if (small && buffer_.bytes) std::memcpy(mail_->data, host_address(buffer_.data), buffer_.bytes);
    if (!small) mail_->region = Channel::region_of(buffer_);
    mail_->state.store(Mail::posted, std::memory_order_seq_cst);
    channel_.ring(to_);
    return small ? Progress::finished : Progress::moved;
  }
  const auto state = mail_->state.load(std::memory_order_seq_cst);
  if (state == Mail::posted) return Progress::none;
  mail_->state.store(Mail::empty, std::memory_order_seq_cst);
  TORCH_CHECK_WITH(DistBackendError, state == Mail::taken, record->describe(), ": rank ", to_, " expected another size or dtype");
  return Progress::finished;
}

Receive::Receive(Channel& channel, Buffer buffer, uint64_t dtype, int from, int64_t tag)
    : channel_(channel), buffer_(buffer), dtype_(dtype), from_(from), tag_(tag) {
  heavy = buffer.bytes > kMailBytes;
}

std::string Receive::awaited() const {
  const std::string what = ", to send a message with tag " + std::to_string(tag_);
  return (from_ == kAnySource ? "any rank" : channel_.describe(from_)) + what;
}

bool Receive::needs_rank(int rank) const {
  if (from_ != kAnySource) return rank == from_ && !find(from_);
  // Any other rank may still send: hopeless only when all are gone.
  for (int other = 0; other < channel_.size; ++other)
    if (other != channel_.rank &&
        (find(other) || (other != rank && channel_.standing(other) == Channel::taking_part && channel_.alive(other))))
      return false;
  return true;
}

bool Receive::precedes(const Operation& later) const {
  const auto* other = dynamic_cast<const Receive*>(&later);
  return other && source() == kAnySource && other->tag_ == tag_ &&
         (from_ == other->from_ || from_ == kAnySource || other->from_ == kAnySource);
}

/// The oldest mail from `from` with our tag.
///
/// While we go from mail to mail, the sender may post two: the first where we have been, the second where we come next. So we look twice:
/// by then, whatever is older than what was seen at first is there.
Mail* Receive::find(int from) const {
  Mail* oldest = nullptr;
  for (int look = 0; look < 2; ++look) {
    for (int i = 0; i < kMails; ++i) {
      Mail& mail = channel_.mail(from, channel_.rank, i);
      if (mail.state.load(std::memory_order_seq_cst) != Mail::posted || mail.tag != tag_) continue;
      if (!oldest || mail.order < oldest->order) oldest = &mail;
    }
    if (!oldest) return nullptr;
  }
  return oldest;
}

Operation::Progress Receive::step(bool light) {
  if (source() == kAnySource) {
    if (light && heavy) return Progress::none;
    const int first = from_ == kAnySource ? 0 : from_, last = from_ == kAnySource ? channel_.size - 1 : from_;
    for (int from = first; from <= last; ++from) {
      Mail* mail = find(from);
      if (!mail) continue;
      take(*mail, from);
      source_.store(from, std::memory_order_release);
      if (const auto link = modelled().link; link.count() > 0) not_before = Clock::now() + link;
      break;
    }
    if (source() == kAnySource) return Progress::none;
  }
  return Clock::now() >= not_before ? Progress::finished : Progress::none;
}

void Receive::take(Mail& mail, int from) {
  channel_.note_entered(record->describe());
  if (mail.bytes != buffer_.bytes || mail.dtype != dtype_) {
    const uint64_t sent = mail.bytes;
    const bool same_type = mail.dtype == dtype_;
    mail.state.store(mail.direct ? Mail::refused : Mail::empty, std::memory_order_seq_cst);
    channel_.ring(from);
    TORCH_CHECK_WITH(DistBackendError, same_type, record->describe(), ": rank ", from, " sends another dtype than rank ", channel_.rank,
                     " expects");
    TORCH_CHECK_WITH(DistBackendError, false, record->describe(), ": rank ", from, " sends ", sent, " bytes, but rank ", channel_.rank,
                     " expects ", buffer_.bytes);
  }
  char* to = host_address(buffer_.data);
  if (mail.direct) {
    const char* data = from == channel_.rank ? nullptr : channel_.peer_memory(from, mail.region, mail.epoch);
    copy_large(to, data, buffer_.bytes);
  } else if (buffer_.bytes) {
    std::memcpy(to, mail.data, buffer_.bytes);
  }
  mail.state.store(mail.direct ? Mail::taken : Mail::empty, std::memory_order_seq_cst);
  channel_.ring(from);
}

}  // namespace neuron::distributed

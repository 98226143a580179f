// Send and receive between two ranks of one process, each with a thread of its own, over one channel.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/distributed/message.h"
#include "tests/cpp/check.h"

using namespace neuron::distributed;

namespace {

constexpr int64_t kTag = 0;

/// The two ends of the shared memory of a group of two ranks.
struct Pair {
  Pair() {
    const auto peer = PeerProcess::find(ProcessFacts::of_this_process());
    SharedBlock block = Channel::make_block(2);
    SharedBlock again = SharedBlock::open(getpid(), block.fd());
    first = std::make_unique<Channel>(0, 2, std::move(block), std::vector<std::shared_ptr<PeerProcess>>{nullptr, peer},
                                      std::vector<uint64_t>{});
    second = std::make_unique<Channel>(1, 2, std::move(again), std::vector<std::shared_ptr<PeerProcess>>{peer, nullptr},
                                       std::vector<uint64_t>{});
  }
  std::unique_ptr<Channel> first, second;
};

std::shared_ptr<FlightRecord> record_of(uint64_t sequence) {
  auto record = std::make_shared<FlightRecord>();
  record->sequence = sequence;
  return record;
}

void run(Operation& operation, uint64_t sequence) {
  operation.record = record_of(sequence);
  constexpr int kPatience = 10'000;  // steps: the other thread may have no core
  for (int idle = 0;;) {
    const auto progress = operation.step(false);
    if (progress == Operation::Progress::finished) return;
    if (progress == Operation::Progress::none && ++idle % kPatience == 0) std::this_thread::yield();
  }
}

}  // namespace

TEST(what_is_sent_while_the_receiver_looks_is_taken_in_order) {
  static Pair ranks;
  static uint64_t values[] = {10, 11};
  const auto send = [](uint64_t i) {
    auto made = std::make_unique<Send>(*ranks.first, Buffer{reinterpret_cast<char*>(&values[i]), sizeof values[i], 0}, 0, 1, kTag);
    made->record = record_of(i);
    return made;
  };
  static const std::unique_ptr<Send> sends[] = {send(0), send(1)};  // made here: a signal handler may not allocate
  // The receiver's page of the second mail stops it between the first and the second. There the sender posts two.
  static const auto page = static_cast<size_t>(getpagesize());
  static char* const at = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(&ranks.second->mail(0, 1, 1)) & ~(page - 1));
  struct sigaction post{}, before{};
  post.sa_handler = [](int) {
    mprotect(at, page, PROT_READ | PROT_WRITE);
    for (const auto& one : sends) one->step(false);
  };
  sigaction(SIGSEGV, &post, &before);
  mprotect(at, page, PROT_NONE);
  uint64_t got[2] = {};
  for (uint64_t i = 0; i < 2; ++i) {
    Receive receive(*ranks.second, {reinterpret_cast<char*>(&got[i]), sizeof got[i], 0}, 0, 0, kTag);
    run(receive, i);
  }
  sigaction(SIGSEGV, &before, nullptr);
  CHECK(got[0] == 10);
  CHECK(got[1] == 11);
}

TEST(messages_of_one_tag_arrive_in_the_order_of_the_sends) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLong = std::chrono::seconds(1);
  constexpr uint64_t kMost = 300'000, kLast = ~uint64_t{0};
  Pair ranks;
  std::atomic<bool> enough{false};
  std::thread sender([&] {
    for (uint64_t i = 0, value = 0; value != kLast; ++i) {
      value = enough || i == kMost ? kLast : i;
      Send send(*ranks.first, {reinterpret_cast<char*>(&value), sizeof value, 0}, 0, 1, kTag);
      run(send, i);
    }
  });
  uint64_t out_of_order = 0;
  const auto until = Clock::now() + kLong;
  for (uint64_t i = 0, value = 0; value != kLast; ++i) {
    Receive receive(*ranks.second, {reinterpret_cast<char*>(&value), sizeof value, 0}, 0, 0, kTag);
    run(receive, i);
    out_of_order += value != i && value != kLast;
    enough = out_of_order > 0 || Clock::now() >= until;
  }
  sender.join();
  CHECK(out_of_order == 0);
}

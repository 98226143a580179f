// The blocks of one device: never shared, reused in stream order, counted right, given back when memory is short.
#include "csrc/aten/caching_allocator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "csrc/runtime/emulated/memory.h"
#include "tests/cpp/check.h"

using namespace neuron;
using namespace neuron::emulated;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// A stream whose progress the test decides.
class Paper final : public Stream {
 public:
  explicit Paper(int64_t id) : Stream(0, id, 0) {}
  void enqueue() { ++enqueued_; }
  void finish() { completed_ = enqueued_.load(); }
  uint64_t launch(Executable&, const uint64_t*, size_t) override { return ++enqueued_; }
  uint64_t launch_window(Executable&, const uint64_t*, size_t) override { return ++enqueued_; }
  void open_window(Window*) override {}
  uint64_t call(std::function<void()>) override { return ++enqueued_; }
  uint64_t mark(TimeCell) override { return ++enqueued_; }
  void wait_for(Stream&, uint64_t) override {}
  bool query() override { return reached(enqueued()); }
  void drain(uint64_t) override { finish(); }
  void raise_pending() override {}
};

/// One device with two streams.
struct Device {
  explicit Device(int64_t bytes, DeviceCache::Limits limits = {INT64_MAX, 20 * kMiB}, HostLimits host = {})
      : memory(std::make_shared<AddressSpace>(1, bytes, false), std::make_shared<HostBudget>(host), 0, bytes),
        cache(0, memory, limits, [this] { return std::vector<Stream*>{&one, &two}; }, [this](bool) { ++pressed; }) {}
  Paper one{0}, two{1};
  EmulatedMemory memory;
  std::atomic<int> pressed{0};
  DeviceCache cache;

  int64_t reserved() { return cache.stats().reserved_bytes[0].current; }
};

void check_consistent(DeviceCache& cache) {
  const auto stats = cache.stats();
  int64_t reserved = 0, active = 0, allocated = 0, blocks = 0, split = 0, split_bytes = 0;
  for (const auto& segment : cache.snapshot()) {
    reserved += static_cast<int64_t>(segment.total_size);
    active += static_cast<int64_t>(segment.active_size);
    allocated += static_cast<int64_t>(segment.allocated_size);
    for (const auto& block : segment.blocks) {
      blocks += block.allocated;
      if (block.active || segment.blocks.size() == 1) continue;
      ++split;
      split_bytes += static_cast<int64_t>(block.size);
    }
  }
  CHECK_EQ(stats.reserved_bytes[0].current, reserved);
  CHECK_EQ(stats.active_bytes[0].current, active);
  CHECK_EQ(stats.allocated_bytes[0].current, allocated);
  CHECK_EQ(stats.allocation[0].current, blocks);
  CHECK_EQ(stats.inactive_split[0].current, split);
  CHECK_EQ(stats.inactive_split_bytes[0].current, split_bytes);
  CHECK(reserved >= active && active >= allocated && allocated >= stats.requested_bytes[0].current);
  for (const auto* array : {&stats.reserved_bytes, &stats.active_bytes, &stats.allocated_bytes, &stats.requested_bytes, &stats.allocation,
                            &stats.active, &stats.segment, &stats.inactive_split, &stats.inactive_split_bytes}) {
    CHECK_EQ((*array)[0].current, (*array)[1].current + (*array)[2].current);
    for (const auto& stat : *array) {
      CHECK(stat.current >= 0 && stat.peak >= stat.current);
      CHECK_EQ(stat.allocated - stat.freed, stat.current);
    }
  }
}

}  // namespace

TEST(cache_rounds_as_documented) {
  Device device(256 * kMiB);
  CHECK_EQ(device.cache.allocate(&device.one, 1)->size, 256u);
  CHECK_EQ(device.cache.allocate(&device.one, 257)->size, 512u);
  CHECK_EQ(device.cache.allocate(&device.one, 1000000)->size, 1048576u);  // still of the small pool
  CHECK_EQ(device.cache.stats().allocation[1].current, 3);
  device.cache.allocate(&device.one, 1048576);
  CHECK_EQ(device.cache.stats().allocation[2].current, 1);
  CHECK_EQ(device.cache.allocate(&device.one, 17 * kMiB + 1)->size, static_cast<size_t>(17 * kMiB + 4096));  // not rounded to a class
  check_consistent(device.cache);
}

TEST(cache_reuses_at_once_on_the_same_stream_only) {
  Device device(256 * kMiB);
  for (size_t bytes : {size_t{100}, size_t{5000}, size_t(3 * kMiB), size_t(40 * kMiB)}) {
    Block* block = device.cache.allocate(&device.one, bytes);
    const char* const data = block->data;
    device.cache.free(block);
    Block* other = device.cache.allocate(&device.two, bytes);
    CHECK(other->data != data);
    Block* same = device.cache.allocate(&device.one, bytes);
    CHECK_EQ(static_cast<void*>(same->data), static_cast<const void*>(data));
    device.cache.free(same);
    device.cache.free(other);
  }
  check_consistent(device.cache);
}

TEST(cache_gives_the_same_addresses_in_whatever_order_blocks_were_freed) {
  Device device(512 * kMiB);
  std::mt19937 random(7);
  const std::vector<size_t> sizes{100, 1000, 5000, 5000, 700'000, 300'000, 2 * kMiB, 2 * kMiB, 3 * kMiB, 20 * kMiB};
  std::vector<char*> before;
  for (int round = 0; round < 20; ++round) {
    std::vector<Block*> blocks;
    std::vector<char*> addresses;
    for (int i = 0; i < 60; ++i) {
      blocks.push_back(device.cache.allocate(&device.one, sizes[i % sizes.size()]));
      addresses.push_back(blocks.back()->data);
      if (i % 3 != 2) continue;  // one of the last three goes at once, always the same
      device.cache.free(blocks[i - 1]);
      blocks[i - 1] = nullptr;
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (Block* block : blocks)
      if (block != nullptr) device.cache.free(block);
    if (round > 2) CHECK(addresses == before);
    before = addresses;
  }
}

TEST(heap_of_blocks_keeps_the_lowest_address_first) {
  char memory[200];
  std::vector<Block> blocks(200);
  for (int i = 0; i < 200; ++i) blocks[i].data = memory + i;
  BlockHeap heap;
  std::map<char*, Block*> inside;
  std::mt19937 random(3);
  for (int step = 0; step < 20'000; ++step) {
    Block* one = &blocks[random() % blocks.size()];
    if (inside.erase(one->data) != 0) {
      heap.remove(one);
    } else {
      heap.add(one);
      inside[one->data] = one;
    }
    CHECK(heap.first() == (inside.empty() ? nullptr : inside.begin()->second));
    if (step % 100 == 0) CHECK_EQ(heap.all().size(), inside.size());
  }
}

TEST(cache_keeps_recorded_blocks_until_the_stream_has_passed) {
  Device device(256 * kMiB);
  Block* block = device.cache.allocate(&device.one, 1000);
  const char* const data = block->data;
  device.cache.record_stream(block, &device.two);
  device.cache.record_stream(block, &device.two);
  device.cache.record_stream(block, &device.one);  // its own: says nothing new
  device.two.enqueue();
  device.cache.free(block);
  auto stats = device.cache.stats();
  CHECK_EQ(stats.allocated_bytes[0].current, 0);
  CHECK_EQ(stats.active_bytes[0].current, 1024);
  CHECK(device.cache.allocate(&device.one, 1000)->data != data);
  device.two.finish();
  CHECK_EQ(device.cache.stats().active_bytes[0].current, 1024);  // the other one alone
  CHECK_EQ(static_cast<void*>(device.cache.allocate(&device.one, 1000)->data), static_cast<const void*>(data));

  Block* idle = device.cache.allocate(&device.one, 1000);
  device.cache.record_stream(idle, &device.two);
  device.cache.free(idle);  // nothing is queued on the other stream: free at once
  CHECK_EQ(device.cache.allocate(&device.one, 1000), idle);
  check_consistent(device.cache);
}

TEST(cache_merges_what_was_cut) {
  Device device(256 * kMiB);
  for (size_t bytes : {size_t{2048}, size_t(2 * kMiB)}) {  // small blocks merge when they must, large ones at once
    const size_t segment = bytes < static_cast<size_t>(kMiB) ? 2 * kMiB : 20 * kMiB;
    const int64_t before = device.reserved();
    std::vector<Block*> blocks;
    for (size_t i = 0; i < segment / bytes; ++i) blocks.push_back(device.cache.allocate(&device.one, bytes));
    CHECK_EQ(device.reserved() - before, static_cast<int64_t>(segment));
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
    for (Block* block : blocks) device.cache.free(block);
    check_consistent(device.cache);
    Block* big = device.cache.allocate(&device.one, bytes * 4);  // fits into no single one
    CHECK_EQ(device.reserved() - before, static_cast<int64_t>(segment));
    device.cache.free(big);
  }
  device.cache.empty_cache();
  CHECK_EQ(device.reserved(), 0);
  check_consistent(device.cache);
}

TEST(cache_gives_back_only_what_no_queue_can_touch) {
  Device device(256 * kMiB);
  Block* block = device.cache.allocate(&device.one, 30 * kMiB);
  device.one.enqueue();
  device.cache.free(block);
  device.cache.release_unused();
  CHECK_EQ(device.reserved(), 30 * kMiB);
  device.cache.empty_cache();  // waits
  CHECK(device.one.query());
  CHECK_EQ(device.reserved(), 0);
  int64_t free = 0, total = 0;
  device.memory.info(&free, &total);
  CHECK_EQ(free, total);
}

TEST(cache_retries_before_it_fails) {
  Device device(64 * kMiB);
  Block* cached = device.cache.allocate(&device.two, 40 * kMiB);  // kept for the other stream
  device.two.enqueue();
  device.cache.free(cached);
  Block* block = device.cache.allocate(&device.one, 50 * kMiB);
  auto stats = device.cache.stats();
  CHECK_EQ(stats.num_alloc_retries, 1);
  CHECK_EQ(stats.num_ooms, 0);
  CHECK(device.pressed > 0);
  CHECK_THROWS(OutOfMemory, device.cache.allocate(&device.one, 20 * kMiB));
  CHECK_EQ(device.cache.stats().num_ooms, 1);
  Block* small = device.cache.allocate(&device.one, 13 * kMiB);  // no room for a shared segment, yet for the block
  device.cache.free(small);
  device.cache.free(block);
  device.cache.allocate(&device.one, 64 * kMiB);
  check_consistent(device.cache);
}

TEST(cache_waits_for_pending_blocks_before_it_fails) {
  Device device(64 * kMiB);
  Block* block = device.cache.allocate(&device.one, 40 * kMiB);
  device.cache.record_stream(block, &device.two);
  device.two.enqueue();
  device.cache.free(block);
  device.cache.allocate(&device.one, 40 * kMiB);
  CHECK(device.two.query());
  check_consistent(device.cache);
}

TEST(cache_respects_the_fraction) {
  Device device(64 * kMiB);
  device.cache.set_fraction(0.5);
  Block* block = device.cache.allocate(&device.one, 30 * kMiB);
  try {
    device.cache.allocate(&device.one, 30 * kMiB);
    check::fail(__FILE__, __LINE__, "no OutOfMemory");
  } catch (const OutOfMemory& full) {
    CHECK_EQ(std::string(full.which), "device");
    CHECK(full.detail.find("set_per_process_memory_fraction") != std::string::npos);
  }
  device.cache.free(block);
  device.cache.set_fraction(1.0);
  device.cache.allocate(&device.one, 60 * kMiB);
}

TEST(cache_says_that_the_host_is_full) {
  Device device(1024 * kMiB, {INT64_MAX, 20 * kMiB}, HostLimits{32 * kMiB, 0});
  device.cache.allocate(&device.one, 30 * kMiB);
  try {
    device.cache.allocate(&device.one, 30 * kMiB);
    check::fail(__FILE__, __LINE__, "no OutOfMemory");
  } catch (const OutOfMemory& full) {
    CHECK_EQ(std::string(full.which), "host");
  }
  device.cache.allocate(&device.one, 100);
  check_consistent(device.cache);
}

TEST(cache_does_not_cut_oversize_blocks) {
  Device device(256 * kMiB, {32 * kMiB, 8 * kMiB});
  device.cache.free(device.cache.allocate(&device.one, 40 * kMiB));
  CHECK_EQ(device.cache.stats().oversize_allocations.allocated, 1);
  device.cache.allocate(&device.one, 20 * kMiB);  // not out of the 40 MiB
  CHECK_EQ(device.reserved(), 60 * kMiB);
  Block* close = device.cache.allocate(&device.one, 36 * kMiB);  // near enough to use it whole
  CHECK_EQ(close->size, static_cast<size_t>(40 * kMiB));
  device.cache.free(close);
  CHECK_EQ(device.cache.allocate(&device.one, 32 * kMiB)->size, static_cast<size_t>(32 * kMiB));  // 8 MiB away: too far
  check_consistent(device.cache);
}

TEST(cache_resets_statistics) {
  Device device(256 * kMiB);
  Block* kept = device.cache.allocate(&device.one, 1000);
  device.cache.free(device.cache.allocate(&device.one, 5000));
  device.cache.reset_accumulated();
  device.cache.reset_peak();
  auto stats = device.cache.stats();
  CHECK_EQ(stats.allocated_bytes[0].allocated, 0);
  CHECK_EQ(stats.allocated_bytes[0].freed, 0);
  CHECK_EQ(stats.allocated_bytes[0].current, 1024);
  CHECK_EQ(stats.allocated_bytes[0].peak, 1024);
  device.cache.free(kept);
  stats = device.cache.stats();
  CHECK_EQ(stats.allocated_bytes[0].freed, 1024);
  CHECK_EQ(stats.allocated_bytes[0].peak, 1024);
}

TEST(cache_history_is_a_ring) {
  Device device(256 * kMiB);
  device.cache.record(true, nullptr, 3, RecordContext::NEVER, false);
  device.cache.free(device.cache.allocate(&device.one, 1000));  // segment_alloc, alloc, free_requested, free_completed
  auto events = device.cache.recorded();
  CHECK_EQ(events.size(), 3u);
  CHECK(events[0].action_ == TraceEntry::ALLOC);
  CHECK(events[2].action_ == TraceEntry::FREE_COMPLETED);
  device.cache.record(false, nullptr, 0, RecordContext::NEVER, false);
  device.cache.free(device.cache.allocate(&device.one, 1000));
  CHECK_EQ(device.cache.recorded().size(), 3u);
}

TEST(cache_random_programs_never_share_a_byte) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    Device device(96 * kMiB, seed % 2 ? DeviceCache::Limits{8 * kMiB, kMiB} : DeviceCache::Limits{INT64_MAX, 20 * kMiB});
    std::mt19937 random(seed);
    std::map<char*, Block*> live;
    Paper* const streams[] = {&device.one, &device.two};
    for (int i = 0; i < 6000; ++i) {
      const unsigned dice = random() % 100;
      if (dice < 50) {
        const size_t bytes = (size_t{1} << (random() % 24)) + random() % 1000;
        Block* block = nullptr;
        try {
          block = device.cache.allocate(streams[random() % 2], bytes);
        } catch (const OutOfMemory&) {
          continue;
        }
        CHECK(block->size >= bytes);
        CHECK(device.memory.contains(block->data) && device.memory.contains(block->data + block->size - 1));
        auto next = live.lower_bound(block->data);
        CHECK(next == live.end() || block->data + block->size <= next->first);
        CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second->size <= block->data);
        live[block->data] = block;
      } else if (dice < 90 && !live.empty()) {
        auto it = std::next(live.begin(), random() % live.size());
        if (random() % 4 == 0) {
          device.cache.record_stream(it->second, streams[random() % 2]);
          streams[random() % 2]->enqueue();
        }
        device.cache.free(it->second);
        live.erase(it);
      } else if (dice < 97) {
        streams[random() % 2]->finish();
      } else if (dice == 97) {
        device.cache.empty_cache();
      } else {
        check_consistent(device.cache);
      }
    }
    for (auto& [data, block] : live) device.cache.free(block);
    device.cache.empty_cache();
    CHECK_EQ(device.reserved(), 0);
    check_consistent(device.cache);
  }
}

TEST(cache_from_many_threads) {
  Device device(512 * kMiB);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<Block*> mine;
      for (int i = 0; i < 3000; ++i) {
        if (mine.size() > 20 || (random() % 2 && !mine.empty())) {
          std::swap(mine[random() % mine.size()], mine.back());
          if (*reinterpret_cast<int*>(mine.back()->data) != t) ++wrong;
          device.cache.free(mine.back());
          mine.pop_back();
        } else {
          mine.push_back(device.cache.allocate(t % 2 ? &device.one : &device.two, size_t{4} << (random() % 20)));
          *reinterpret_cast<int*>(mine.back()->data) = t;
          if (random() % 8 == 0) device.cache.record_stream(mine.back(), t % 2 ? &device.two : &device.one);
        }
        if (i % 1000 == 0) device.cache.empty_cache();
      }
      for (Block* block : mine) device.cache.free(block);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  check_consistent(device.cache);
  CHECK_EQ(device.cache.stats().allocation[0].current, 0);
}

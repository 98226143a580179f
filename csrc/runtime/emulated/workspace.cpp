#include "csrc/runtime/emulated/workspace.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <new>

#include "csrc/runtime/target.h"

namespace neuron {

/// Memory of the device that holds blocks of one size.
struct Workspace::Segment {
  Workspace* owner;
  void* address;  // of the device
  char* begin;    // of the host
  size_t bytes;
  size_t block_bytes;  // with the header
  int size_class;      // kClasses: one block
  int live = 0;
  size_t untouched = 0;  // offset from which no block was ever handed out
  Header* free = nullptr;
  bool listed = false;  // in shared_
};

/// In front of each block, so that put() finds its way. As large as the alignment.
struct alignas(64) Workspace::Header {
  Segment* segment;
  Header* next;
};

namespace {

constexpr size_t kSmallestShift = 10;
constexpr size_t kSharedLimit = size_t{1} << 20;  // blocks up to this size share segments
constexpr size_t kSharedSegment = size_t{2} << 20;
constexpr size_t kWholeUnit = size_t{2} << 20;

}  // namespace

Workspace::~Workspace() {
  for (Segment* segment : segments_) {
    memory_.release(segment->address, segment->bytes);
    delete segment;
  }
}

void* Workspace::get(size_t bytes) {
  const size_t needed = bytes + sizeof(Header);
  if (needed < bytes) throw OutOfMemory{"device", INT64_MAX, 0, 0, "no device has that much memory"};
  int size_class = kClasses;
  if (needed <= kSharedLimit) size_class = std::max<int>(std::bit_width(needed - 1), kSmallestShift) - static_cast<int>(kSmallestShift);
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    return take(segment_for(size_class, needed));
  } catch (const OutOfMemory&) {
    release_unused();
  }
  return take(segment_for(size_class, needed));
}

/// A segment with a free block of the class, or of `bytes`.
Workspace::Segment* Workspace::segment_for(int size_class, size_t bytes) {
  if (size_class < kClasses) {
    auto& candidates = shared_[size_class];
    if (!candidates.empty()) return candidates.back();
    Segment* segment = grow(size_class, size_t{1} << (size_class + kSmallestShift), kSharedSegment);
    segment->listed = true;
    candidates.push_back(segment);
    return segment;
  }
  // Up to a quarter more than asked is fine: pages that nobody touches cost nothing.
  const size_t rounded = (bytes + kWholeUnit - 1) / kWholeUnit * kWholeUnit;
  auto fit = whole_.lower_bound(rounded);
  if (fit != whole_.end() && fit->first <= rounded + rounded / 4) {
    Segment* segment = fit->second;
    whole_.erase(fit);
    return segment;
  }
  return grow(kClasses, rounded, rounded);
}

Workspace::Segment* Workspace::grow(int size_class, size_t block_bytes, size_t segment_bytes) {
  auto segment = std::make_unique<Segment>();
  segments_.reserve(segments_.size() + 1);
  segment->owner = this;
  segment->address = memory_.allocate(segment_bytes);
  segment->begin = static_cast<char*>(host_address(segment->address));
  segment->bytes = segment_bytes;
  segment->block_bytes = block_bytes;
  segment->size_class = size_class;
  segments_.push_back(segment.release());
  reserved_ += static_cast<int64_t>(segment_bytes);
  peak_ = std::max(peak_, reserved_);
  return segments_.back();
}

void* Workspace::take(Segment* segment) {
  Header* header = segment->free;
  if (header) {
    segment->free = header->next;
  } else {
    header = new (segment->begin + segment->untouched) Header{segment, nullptr};
    segment->untouched += segment->block_bytes;
  }
  ++segment->live;
  in_use_ += static_cast<int64_t>(segment->block_bytes);
  const bool full = !segment->free && segment->untouched + segment->block_bytes > segment->bytes;
  if (full && segment->listed) {
    auto& candidates = shared_[segment->size_class];
    candidates.erase(std::find(candidates.begin(), candidates.end(), segment));
    segment->listed = false;
  }
  return header + 1;
}

void Workspace::put(void* data) {
  if (!data) return;
  Header* header = static_cast<Header*>(data) - 1;
  header->segment->owner->give_back(header->segment, header);
}

void Workspace::give_back(Segment* segment, Header* header) {
  std::lock_guard<std::mutex> lock(mutex_);
  header->next = segment->free;
  segment->free = header;
  --segment->live;
  in_use_ -= static_cast<int64_t>(segment->block_bytes);
  if (segment->size_class == kClasses) {
    whole_.emplace(segment->bytes, segment);
  } else if (!segment->listed) {
    shared_[segment->size_class].push_back(segment);
    segment->listed = true;
  }
}

void Workspace::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  release_unused();
}

void Workspace::release_unused() {
  const auto unused = [](const Segment* segment) { return segment->live == 0; };
  for (auto& candidates : shared_) std::erase_if(candidates, unused);
  whole_.clear();  // all that lie there are unused
  std::erase_if(segments_, [&](Segment* segment) {
    if (!unused(segment)) return false;
    reserved_ -= static_cast<int64_t>(segment->bytes);
    memory_.release(segment->address, segment->bytes);
    delete segment;
    return true;
  });
}

int64_t Workspace::bytes_reserved() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reserved_;
}

int64_t Workspace::peak_bytes_reserved() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peak_;
}

int64_t Workspace::bytes_in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

Workspace& workspace(int device) {
  static auto* const all = [] {
    auto* list = new std::vector<std::unique_ptr<Workspace>>;
    for (int i = 0; i < target().device_count(); ++i) list->push_back(std::make_unique<Workspace>(target().memory(i)));
    return list;
  }();
  return *all->at(device);
}

}  // namespace neuron

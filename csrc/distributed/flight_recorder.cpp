#include "csrc/distributed/flight_recorder.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <utility>

namespace neuron::distributed {
namespace {

struct Recorder {
  std::mutex mutex;
  std::deque<std::shared_ptr<FlightRecord>> kept;
  uint64_t next = 0;
  size_t most = [] {
    const char* text = std::getenv("TORCH_FR_BUFFER_SIZE");
    const long size = text ? std::strtol(text, nullptr, 10) : 0;
    return size > 0 ? static_cast<size_t>(size) : size_t{2000};
  }();
};

Recorder& recorder() {
  static auto* const made = new Recorder;
  return *made;
}

std::string amount(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text.data();
}

}  // namespace

std::string FlightRecord::describe() const {
  std::string text = operation + " #" + std::to_string(sequence);
  if (!dtype.empty()) text += " of " + amount(bytes) + " " + dtype;
  if (peer >= 0) text += " with rank " + std::to_string(peer);
  if (!site.empty()) text += " at " + site;
  return text;
}

const char* name_of(FlightRecord::State state) {
  constexpr const char* names[] = {"scheduled", "started", "completed", "failed"};
  return names[static_cast<int>(state)];
}

std::shared_ptr<FlightRecord> record_flight(FlightRecord record) {
  auto& all = recorder();
  record.scheduled = std::chrono::system_clock::now();
  auto kept = std::make_shared<FlightRecord>(std::move(record));
  std::lock_guard<std::mutex> lock(all.mutex);
  kept->id = all.next++;
  all.kept.push_back(kept);
  if (all.kept.size() > all.most) all.kept.pop_front();
  return kept;
}

void advance(FlightRecord& record, FlightRecord::State state) {
  std::lock_guard<std::mutex> lock(recorder().mutex);
  record.state = state;
  (state == FlightRecord::State::started ? record.started : record.ended) = std::chrono::system_clock::now();
}

std::vector<FlightRecord> flight_records() {
  auto& all = recorder();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<FlightRecord> copies;
  for (const auto& record : all.kept) copies.push_back(*record);
  return copies;
}

}  // namespace neuron::distributed

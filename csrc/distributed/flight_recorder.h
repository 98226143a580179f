// The last operations of this process, for finding out why a job hangs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace neuron::distributed {

struct FlightRecord {
  enum class State : uint8_t { scheduled, started, completed, failed };
  using Time = std::chrono::system_clock::time_point;

  uint64_t id = 0;
  std::string group;      ///< its name
  uint64_t sequence = 0;  ///< of the operation in its group
  std::string operation;  ///< "ALLREDUCE SUM"
  std::string dtype;      ///< "" where none counts
  uint64_t bytes = 0;     ///< that this rank puts in
  int peer = -1;          ///< rank in the group, of send and recv
  std::string site;       ///< "train.py:12", the user's line; "" on threads without Python
  State state = State::scheduled;
  Time scheduled, started, ended;  ///< epoch when it has not happened

  /// "ALLREDUCE SUM #12 of 4.0 MiB float32 at train.py:12"
  std::string describe() const;
};

const char* name_of(FlightRecord::State state);

/// Adds a record; the oldest goes when TORCH_FR_BUFFER_SIZE (2000) are kept.
std::shared_ptr<FlightRecord> record_flight(FlightRecord record);

/// Changes the state of a record, and notes when.
void advance(FlightRecord& record, FlightRecord::State state);

/// Copies of what is kept, oldest first.
std::vector<FlightRecord> flight_records();

}  // namespace neuron::distributed

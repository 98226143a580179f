// What a place to run offers. Two targets implement this contract (emulated/, trainium/), with the same file names;
// nothing outside csrc/runtime/ asks which one is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "csrc/runtime/memory.h"
#include "csrc/runtime/stream.h"

namespace neuron {

/// Immutable facts about one logical NeuronCore.
struct DeviceInfo {
  std::string name;          ///< what users see, "Trainium2 (emulated)"
  std::string generation;    ///< "trn2" or "trn3"
  std::string instance;      ///< "trn2.3xlarge"
  int chip = 0;              ///< index of the chip that holds the core
  int physical_cores = 0;    ///< physical cores behind the logical one (LNC)
  int64_t memory_bytes = 0;  ///< HBM that the logical core may use
  bool emulated = true;
};

class Target {
 public:
  virtual ~Target() = default;

  /// Devices that this process may use. Never throws.
  virtual int device_count() const noexcept = 0;

  /// Facts about device `index`. Throws c10::Error when there is no such device.
  virtual const DeviceInfo& device_info(int index) const = 0;

  /// Raw memory, see memory.h.
  virtual Memory& memory(int device) = 0;

  /// Makes a stream; it lives as long as the process. `priority`: lower numbers run first (as on CUDA).
  virtual Stream* new_stream(int device, int64_t id, int priority) = 0;
};

/// How many devices there would be, from the settings alone: opens nothing, throws nothing, 0 when the settings are bad.
int device_count() noexcept;

/// The target in use; opened by the first call. Throws c10::Error with the cause and the remedy when it cannot be opened, again at each
/// call.
Target& target();

/// True once target() has opened one.
bool target_is_open() noexcept;

}  // namespace neuron

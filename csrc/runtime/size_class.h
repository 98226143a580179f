// Sizes that memory is handed out in, so that freed blocks fit the next request.
//
// Up to 2 KiB a class every 256 bytes, above it eight classes per doubling: at most an eighth of a block is lost to rounding.
#pragma once

#include <bit>
#include <cstddef>

namespace neuron {

constexpr size_t kSmallestBlock = 256;
constexpr int kSizeClasses = 8 + 8 * 30;  // the last one is 2 TiB

/// The first class that holds `bytes` (at least 1).
constexpr int size_class_up(size_t bytes) {
  const size_t last = bytes - 1;
  if (last < 2048) return static_cast<int>(last / kSmallestBlock);
  const int octave = static_cast<int>(std::bit_width(last)) - 12;
  return 8 + 8 * octave + static_cast<int>((last >> (8 + octave)) - 8);
}

/// Bytes of a block of class `index`.
constexpr size_t size_of_class(int index) {
  if (index < 8) return (static_cast<size_t>(index) + 1) * kSmallestBlock;
  const int octave = (index - 8) / 8, step = (index - 8) % 8;
  return (size_t{2048} << octave) + (static_cast<size_t>(step) + 1) * (kSmallestBlock << octave);
}

/// The last class that fits into `bytes` (at least kSmallestBlock).
constexpr int size_class_down(size_t bytes) {
  const int up = size_class_up(bytes);
  return size_of_class(up) == bytes ? up : up - 1;
}

}  // namespace neuron

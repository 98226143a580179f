// A team of threads for one kernel of ours: PyTorch's own OpenMP pool, without OpenMP pragmas (see ThreadScope in executable.cpp).
#pragma once

#include <cstdint>
#include <functional>

namespace neuron {

/// Calls body(first, last) for pieces of [0, count), on up to `threads` threads; a thread that is done takes the next piece of `grain`.
/// Every index is in exactly one piece. `body` must not throw.
void parallel_pieces(int64_t count, int64_t grain, int threads, const std::function<void(int64_t, int64_t)>& body);

}  // namespace neuron

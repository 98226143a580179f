// Warnings of kernels that run on the worker thread. There PyTorch's handler would print them to stderr; kept until a host thread
// synchronises, they become Python warnings, which a user can catch and filter.
#pragma once

namespace neuron {

/// From now on keeps what the calling thread warns of.
void keep_warnings() noexcept;

/// Hands what was kept to the calling thread's handler, in order. Cheap when there is nothing.
void deliver_warnings();

}  // namespace neuron

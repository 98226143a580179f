// A process that ends by an exception computes nothing more.
#pragma once

#include <atomic>

namespace neuron {

/// Never in a rank of a group or a worker of RPC: others would get what was not computed. Once set, launches that a stream meets are passed
/// over: nobody will see what they compute, and a script that runs far ahead of the device may have a minute of them queued. Everything
/// else in the queues (callbacks, waits, events) still happens, so nobody waits for ever.
extern std::atomic<bool> dropping_launches;

}  // namespace neuron

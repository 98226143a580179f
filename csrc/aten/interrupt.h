// What is not a launch but touches the device's work: copies, waits, events, fallbacks. A light header for those who do such things.
#pragma once

namespace neuron {

/// Something happens on this thread that a Program cannot hold: the recording in progress (recorder.h), if any, ends with this reason.
void interrupt(const char* why);

}  // namespace neuron

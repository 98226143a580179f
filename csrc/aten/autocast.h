// torch.autocast("neuron").
#pragma once

namespace neuron {

/// Makes bfloat16 the calling thread's autocast dtype for the device, unless the thread has chosen before. PyTorch keeps that dtype per
/// thread and starts at float16, so this is called when a thread loads the library or first uses the device. True when it changed
/// something.
bool set_default_autocast_dtype() noexcept;

}  // namespace neuron

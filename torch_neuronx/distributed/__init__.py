"""What ``neuron`` adds to ``torch.distributed``. Nothing here is needed to use it: ``init_process_group("neuron")`` is enough."""

from __future__ import annotations

from torch_neuronx.distributed._flight_recorder import flight_recorder
from torch_neuronx.distributed._monitored_barrier import monitored_barrier

__all__ = ["flight_recorder", "monitored_barrier"]

"""What ``neuron`` adds to ``torch.distributed``. Nothing here is needed to use it: ``init_process_group("neuron")`` is enough."""

from __future__ import annotations

from torch_neuronx.distributed._flight_recorder import flight_recorder
from torch_neuronx.distributed._monitored_barrier import monitored_barrier
from torch_neuronx.distributed._rpc import rpc_backend

__all__ = ["flight_recorder", "monitored_barrier", "rpc_backend"]

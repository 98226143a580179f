"""The public names of ``torch.neuron`` and ``torch_neuronx``, in one list."""

from __future__ import annotations

from torch import OutOfMemoryError

from torch_neuronx import _utils, amp, memory, random, streams
from torch_neuronx._buckets import buckets
from torch_neuronx._device import (
    DeviceProperties,
    _exchange_device,
    _is_compiled,
    _is_in_bad_fork,
    _lazy_init,
    _maybe_exchange_device,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_neuronx.amp import get_amp_supported_dtype
from torch_neuronx.explain import clear_op_tracking, explain, get_executed_ops, get_fallback_ops
from torch_neuronx.float8 import from_float8_e4m3_trn2, to_float8_e4m3_trn2
from torch_neuronx.interop import array_interface, from_dlpack, to_dlpack
from torch_neuronx.ipc import ipc_collect
from torch_neuronx.memory import *  # noqa: F403
from torch_neuronx.memory import __all__ as _memory_names
from torch_neuronx.metrics import get_dynamo_metrics, reset_dynamo_metrics
from torch_neuronx.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_neuronx.semi_structured import to_sparse_semi_structured
from torch_neuronx.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "_exchange_device",
    "_is_compiled",
    "_is_in_bad_fork",
    "_lazy_init",
    "_maybe_exchange_device",
    "_utils",
    "amp",
    "array_interface",
    "buckets",
    "clear_op_tracking",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "explain",
    "from_dlpack",
    "from_float8_e4m3_trn2",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_executed_ops",
    "get_fallback_ops",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "memory",
    "random",
    "reset_dynamo_metrics",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
    "to_dlpack",
    "to_float8_e4m3_trn2",
    "to_sparse_semi_structured",
    *_memory_names,
]

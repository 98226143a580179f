"""What ``torch.cuda`` has and ``torch.neuron`` has not, and what to use instead: the text of the AttributeError."""

from __future__ import annotations

_MONITOR = "The Neuron driver's tools know: neuron-monitor, neuron-top"
_GRAPH = "Use torch.accelerator.Graph, which captures and replays on any device"
_POOL = "There are no pools of a user's own: a torch.accelerator.Graph keeps its blocks by itself"
_ALLOCATOR = "The allocator cannot be replaced; TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG tunes it"
_TYPE = "Use torch.empty(..., dtype=..., device='neuron'), and x.dtype with x.device.type instead of isinstance()"

INSTEAD = {
    "MemPool": _POOL,
    "use_mem_pool": _POOL,
    "graph_pool_handle": _POOL,
    "CUDAPluggableAllocator": _ALLOCATOR,
    "change_current_allocator": _ALLOCATOR,
    "get_allocator_backend": _ALLOCATOR,
    "caching_allocator_alloc": "Use torch.empty(bytes, dtype=torch.uint8, device='neuron')",
    "caching_allocator_delete": "Memory is freed with its last tensor",
    "CUDAGraph": _GRAPH,
    "graph": _GRAPH,
    "Graph": _GRAPH,
    "graphs": _GRAPH,
    "make_graphed_callables": _GRAPH,
    "ExternalStream": "Streams of other libraries cannot be wrapped: synchronise with torch.neuron.synchronize()",
    "get_stream_from_external": "Streams of other libraries cannot be wrapped: synchronise with torch.neuron.synchronize()",
    "is_current_stream_capturing": "torch.accelerator.Graph captures by itself: a call that cannot be captured raises",
    "can_device_access_peer": "All NeuronCores of a process reach each other's memory: copy with x.to('neuron:1')",
    "get_arch_list": "torch.neuron.get_device_properties().name tells the generation",
    "comm": "Use torch.distributed",
    "profiler": "Use torch.profiler",
    "nvtx": "Use torch.profiler.record_function to mark ranges",
    "nccl": "Use torch.distributed",
    "jiterator": "Write the function with PyTorch's ops",
    "cudart": "There is no CUDA runtime",
    "current_blas_handle": "There is no BLAS handle to share: call torch.mm",
    "_sleep": "To keep a stream busy in a test, queue work whose time is known: a chain of matmuls",
    "memory_cached": "Use memory_reserved()",
    "max_memory_cached": "Use max_memory_reserved()",
    "reset_max_memory_cached": "Use reset_peak_memory_stats()",
    "set_sync_debug_mode": "torch.neuron.explain() tells which calls made the host wait, and why",
    "get_sync_debug_mode": "torch.neuron.explain() tells which calls made the host wait, and why",
    **dict.fromkeys(("utilization", "temperature", "power_draw", "clock_rate", "memory_usage", "list_gpu_processes"), _MONITOR),
    **{
        f"{kind}{what}": _TYPE
        for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
        for what in ("Tensor", "Storage")
    },
}


def message(name: str) -> str:
    """Of the AttributeError for ``torch.neuron.<name>``."""
    remedy = f". {INSTEAD[name]}." if name in INSTEAD else ""
    return f"module 'torch_neuronx' (torch.neuron) has no attribute {name!r}{remedy}"

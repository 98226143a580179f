"""An RPC backend of ``torch.distributed.rpc`` that takes tensors of ``neuron``: TensorPipe, whose ``device_maps`` may name its devices.

PyTorch's own, ``BackendType.TENSORPIPE``, refuses maps of devices that are not CUDA's, and its transport has no buffers of others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torch_neuronx import _C

_DEVICE = "neuron"
_NAME = "NEURON"


def rpc_backend() -> Any:
    """What ``torch.distributed.rpc.init_rpc(backend=...)`` takes on all workers when any worker's ``device_maps`` name ``neuron`` devices.

    Its options are ``torch.distributed.rpc.TensorPipeRpcBackendOptions``. Tensors travel through host memory, in stream order.
    """
    from torch.distributed.rpc import backend_registry

    if not backend_registry.backend_registered(_NAME):
        construct = backend_registry._tensorpipe_construct_rpc_backend_options_handler
        backend_registry.register_backend(_NAME, construct, _init_backend)
    return backend_registry.BackendType[_NAME]  # an enum that the registry makes anew


def _init_backend(store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any) -> Any:
    """An agent for one worker, once all have come; what PyTorch's handler of TENSORPIPE does, for ``neuron``."""
    from torch.distributed.rpc import api, backend_registry

    if not world_size:
        raise NotImplementedError(
            "RPC with neuron devices needs world_size: PyTorch checks the device_maps of a group that workers join and leave for CUDA only"
        )
    group = backend_registry._init_process_group(store, rank, world_size)
    reverse_maps, devices = _exchange_maps(name, rpc_backend_options, group)
    if devices:
        torch.neuron.init()  # type: ignore[attr-defined]  # others may send before this process has used its device
    if not hasattr(_C, "RpcAgentNeuron"):
        _C._bind_rpc_agent()
    agent = _C.RpcAgentNeuron(store, name, rank, world_size, rpc_backend_options, reverse_maps, devices)
    api._init_rpc_states(agent)
    api._all_gather(None, timeout=rpc_backend_options.rpc_timeout)  # connects all, so that shutdown() does not have to
    group.barrier().wait()
    return agent


def _exchange_maps(name: str, options: Any, group: Any) -> tuple[Any, Any]:
    """The maps by which answers go back, by worker, and the devices of this worker that any map names. Raises ValueError for bad maps."""
    from torch.distributed.rpc import backend_registry

    mine = (name, torch.neuron.device_count(), options.device_maps, options.devices)  # type: ignore[attr-defined]
    gathered: list[Any] = [None] * group.size()
    dist.all_gather_object(gathered, mine, group)
    names = [one[0] for one in gathered]
    counts, maps, devices = ({one[0]: one[i] for one in gathered} for i in (1, 2, 3))
    _check(names, counts, maps, devices)
    reverse_maps = backend_registry._create_reverse_mapping(name, names, maps)
    return reverse_maps, backend_registry._create_device_list(options.devices, options.device_maps, reverse_maps)


def _check(names: list[str], counts: Any, maps: Any, devices: Any) -> None:
    """PyTorch's checks, which know CUDA and the CPU: they are shown ``neuron`` as CUDA."""
    from torch.distributed.rpc import backend_registry

    def shown(device: torch.device) -> torch.device:
        if device.type == _DEVICE and device.index is None:
            raise ValueError("device_maps: write neuron devices with their index, as neuron:0")
        if device.type not in (_DEVICE, "cpu"):
            raise ValueError(f"device_maps: {device} is neither a neuron device nor the CPU")
        return torch.device("cuda", device.index) if device.type == _DEVICE else device

    shown_maps = {
        worker: {to: {shown(a): shown(b) for a, b in one.items()} for to, one in mapped.items()} for worker, mapped in maps.items()
    }
    shown_devices = {worker: [shown(device) for device in some] for worker, some in devices.items()}
    try:
        backend_registry._validate_device_maps(names, counts, shown_maps, shown_devices)
    except ValueError as error:
        raise ValueError(str(error).replace("cuda", _DEVICE)) from None

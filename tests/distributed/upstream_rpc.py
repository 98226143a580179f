"""PyTorch's own suites of ``torch.distributed.rpc``, as they are in the installed wheel: calls, remote references, distributed autograd and
optimizer, remote modules, DDP under distributed autograd, TorchScript, and PyTorch's examples.

On ``neuron`` each worker makes its tensors on the core of its rank, also in the threads that run requests, and its device maps name for
every worker the core of that one's rank. A test counts only if some rank of it has had memory of the device: much of the suites is about
names, pickling or time-outs, and the same on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.rpc import internal
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.distributed import rpc_utils
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

from tests.distributed.upstream import FORKS, Rank, Suites, note_use
from torch_neuronx.distributed import rpc_backend


class Cpu(TensorPipeRpcAgentTestFixture, MultiProcessTestCase):
    """On the CPU, a process for each worker."""

    def setUp(self) -> None:
        super().setUp()
        FORKS.set_forkserver_preload([__name__])
        self._start_processes(Rank)


def core_of(rank: int) -> torch.device:
    return torch.device("neuron", rank % torch.neuron.device_count())


class Neuron(Cpu):
    """The same on ``neuron``."""

    @property
    def rpc_backend(self) -> Any:
        return rpc_backend()

    @property
    def rpc_backend_options(self) -> Any:
        options = super().rpc_backend_options
        for other in range(self.world_size):
            options.set_device_map(f"worker{other}", {core_of(self.rank): core_of(other)})
        return options

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        torch.neuron.set_device(core_of(rank))
        torch.set_default_device(core_of(rank))
        run_function = internal._run_function

        def on_this_core(function: Any) -> Any:  # the default device is a thread's own
            torch.neuron.set_device(core_of(rank))
            with core_of(rank):
                return run_function(function)

        internal._run_function = on_this_core
        try:
            super()._run(rank, test_name, file_name, parent_pipe, **kwargs)
        finally:
            note_use(cls, test_name)


SUITES: Suites = {}
for _suite in rpc_utils.GENERIC_TESTS + rpc_utils.TENSORPIPE_TESTS:
    _cpu, _neuron = (type(f"{kind.__name__}{_suite.__name__}", (_suite, kind), {"__module__": __name__}) for kind in (Cpu, Neuron))
    SUITES[_cpu] = _neuron
    globals().update({_cpu.__name__: _cpu, _neuron.__name__: _neuron})  # ranks find them by name

ROWS: dict[str, str] = {}

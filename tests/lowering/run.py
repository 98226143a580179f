"""Runs one eager call as the Trainium target will: through its Program, the HLO bytes and XLA:CPU."""

from typing import Any

import torch

from torch_neuronx.lowering import Program
from torch_neuronx.lowering.executor import ProgramRun, in_order


def run_call(op: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """One eager call through the lowering; its tensor arguments are written where the op writes them."""
    leaves = torch.utils._pytree.tree_leaves([args, kwargs])
    run = ProgramRun(Program.from_call(op, args, kwargs))
    return run(*in_order([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]))

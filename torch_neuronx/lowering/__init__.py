"""PyTorch to StableHLO to HLO: what ``neuronx-cc`` is given.

>>> from torch_neuronx.lowering import to_hlo, to_stablehlo
>>> text = to_stablehlo(lambda x, y: (x @ y).relu(), torch.zeros(2, 3), torch.zeros(3, 4))
>>> serialized = to_hlo(text)

Needs the extra ``torchneuron[compiler]`` (jax, jaxlib); JAX is imported when something is first lowered, and the JAX configuration of the
process is not touched. ``python -m torch_neuronx.lowering --coverage`` prints what lowers. docs/dev/lowering.md has the design.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_neuronx.lowering.program import Call, Input, Payload, Program, Slot, TensorMeta
from torch_neuronx.lowering.table import NotLowered

if TYPE_CHECKING:
    from torch_neuronx.lowering.emit import Lowered, lower, to_stablehlo
    from torch_neuronx.lowering.hlo import to_hlo

__all__ = ["Call", "Input", "Lowered", "NotLowered", "Payload", "Program", "Slot", "TensorMeta", "lower", "to_hlo", "to_stablehlo"]


def __getattr__(name: str) -> Any:
    """What imports JAX is imported when it is asked for."""
    if name not in ("lower", "Lowered", "to_stablehlo", "to_hlo"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise ImportError("lowering needs JAX: pip install 'torchneuron[compiler]' (jax and jaxlib)") from error
    import importlib

    module = importlib.import_module(f"torch_neuronx.lowering.{'hlo' if name == 'to_hlo' else 'emit'}")
    return getattr(module, name)

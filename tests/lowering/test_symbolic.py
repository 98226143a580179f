"""Programs with symbolic sizes: one module of dynamic shapes, which gives PyTorch's results at every size."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from torch_neuronx.lowering import NotLowered, Program, emit, lower


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ w).chunk(3, -1)
    return F.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v


def flattened(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Arithmetic on sizes: a product, a sum, an arange of a size."""
    flat = x.reshape(-1, x.shape[-1])
    return torch.cat([flat @ w, (flat @ w).flip(0)]) + torch.arange(2 * flat.shape[0], device=x.device)[:, None]


def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],))) @ w + x.mean() * x.shape[0]


def padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 0, 1, 2))[:, 1:] @ w


CASES: dict[str, Callable[..., torch.Tensor]] = {f.__name__: f for f in (attention, flattened, normalised, padded)}


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return self.function(x, w)


def symbolic(function: Callable[..., torch.Tensor]) -> Program:
    """``x`` has a symbolic batch and length."""
    given = torch.randn(2, 5, 4), torch.randn(4, 12)
    shapes = {"x": {0: Dim("batch", min=2, max=64), 1: Dim("length", min=2, max=64)}, "w": None}
    exported = torch.export.export(Module(function), given, dynamic_shapes=shapes).run_decompositions()
    return Program.from_graph(exported.graph_module)


@pytest.mark.parametrize("name", CASES)
def test_one_module_for_all_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    made: list[Any] = []
    original = emit.hlo_module_of

    def kept(exported: Any) -> Any:
        made.append(exported)
        return original(exported)

    monkeypatch.setattr(emit, "hlo_module_of", kept)
    program = symbolic(CASES[name])
    assert program.symbolic
    lowered = lower(program)
    assert "tensor<?x?x4xf32>" in lowered.text
    for sizes in ((2, 5), (3, 7), (8, 2)):
        x, w = torch.randn(*sizes, 4), torch.randn(4, 12)
        with emit.jax_context():
            (result,) = jax.jit(made[0].call)(x.numpy(), w.numpy())
        torch.testing.assert_close(torch.from_numpy(np.array(result)), CASES[name](x, w), rtol=1e-4, atol=1e-5)
    assert len(made) == 1


def test_the_chip_wants_static_shapes() -> None:
    with pytest.raises(ValueError, match="XLA does not take this module"):
        lower(symbolic(attention)).hlo()


def test_a_symbolic_input_must_be_contiguous() -> None:
    program = symbolic(normalised)
    meta = program.inputs[0].meta
    turned = type(meta)(meta.dtype, meta.sizes, tuple(reversed(meta.strides)))
    program.inputs[0] = type(program.inputs[0])(0, turned)
    with pytest.raises(NotLowered, match="must be contiguous"):
        lower(program)

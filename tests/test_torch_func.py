"""torch.func transforms and forward-mode AD on the device, against the CPU; gradcheck; RNG under vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch import nn
from torch.autograd.gradcheck import GradcheckError
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

DEVICE = "neuron"


@pytest.fixture(autouse=True)
def no_slow_path() -> Any:
    """vmap without a batching rule loops, and says so: on this device it must not happen where it does not on the CPU."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        yield


def both(function: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 1e-4) -> None:
    """``function`` gives the same on the device as on the CPU, and stays there."""
    expected = torch.utils._pytree.tree_flatten(function(*inputs))[0]
    actual = torch.utils._pytree.tree_flatten(function(*[x.to(DEVICE) for x in inputs]))[0]
    assert len(actual) == len(expected) > 0
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.device.type == DEVICE
        torch.testing.assert_close(ours.cpu(), theirs, rtol=rtol, atol=1e-5)


def smooth(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.exp()).softmax(-1).square().sum()


def vector(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x.tanh() * x, (x.shape[-1],))


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda x: grad(smooth)(x),
    "grad_and_value": lambda x: grad_and_value(smooth)(x),
    "grad of grad": lambda x: grad(lambda y: grad(smooth)(y).square().sum())(x),
    "vjp": lambda x: vjp(vector, x)[1](torch.ones_like(x)),
    "jvp": lambda x: jvp(vector, (x,), (torch.ones_like(x),)),
    "linearize": lambda x: linearize(vector, x)[1](torch.ones_like(x)),
    "jacrev": lambda x: jacrev(vector)(x),
    "jacfwd": lambda x: jacfwd(vector)(x),
    "hessian": lambda x: hessian(smooth)(x),
    "vmap": lambda x: vmap(vector)(x),
    "vmap over dim 1": lambda x: vmap(vector, in_dims=1, out_dims=1)(x),
    "vmap in chunks": lambda x: vmap(vector, chunk_size=2)(x),
    "vmap of vmap": lambda x: vmap(vmap(lambda y: y * 2))(x),
    "vmap of grad": lambda x: vmap(grad(smooth))(x),
    "functionalize": lambda x: functionalize(lambda y: y.clone().add_(1).mul_(2))(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    both(TRANSFORMS[name], torch.randn(3, 5))


def test_functional_call_and_per_sample_gradients() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    x, y = torch.randn(5, 1, 6, 6), torch.randint(0, 4, (5,))

    def per_sample(x: torch.Tensor, y: torch.Tensor) -> Any:
        parameters = {name: p.detach().to(x.device) for name, p in model.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

        return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)

    both(per_sample, x, y)


def test_ensemble_of_models() -> None:
    models = [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(7, 4)

    def run(x: torch.Tensor) -> torch.Tensor:
        moved = {name: p.detach().to(x.device) for name, p in parameters.items()}
        return vmap(lambda p: functional_call(models[0], (p, buffers), (x,)))(moved)

    both(run, x)
    torch.testing.assert_close(run(x.to(DEVICE)).cpu()[1], models[1](x))


def test_vmap_of_attention_and_indexing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has no batching rule for the CPU's flash attention
        both(lambda q: vmap(lambda t: torch.nn.functional.scaled_dot_product_attention(t, t, t))(q), torch.randn(3, 2, 4, 5, 8))
    both(lambda x: vmap(lambda row: row[torch.arange(0, 4, 2, device=x.device)])(x), torch.randn(3, 5))
    both(lambda x: vmap(lambda row: torch.where(row > 0, row, row.exp()))(x), torch.randn(3, 5))
    both(lambda x: vmap(lambda m: torch.linalg.solve(m @ m.mT + torch.eye(4, device=x.device), m))(x), torch.randn(3, 4, 4), rtol=1e-2)


def test_randomness_modes() -> None:
    x = torch.zeros(6, 50, device=DEVICE)
    different = vmap(lambda row: row + torch.rand_like(row), randomness="different")(x)
    assert len({tuple(row.tolist()) for row in different}) == 6
    same = vmap(lambda row: row + torch.rand(50, device=DEVICE), randomness="same")(x)
    assert (same == same[0]).all() and same.any()
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda row: row + torch.rand_like(row))(x)
    torch.manual_seed(3)
    first = vmap(lambda row: nn.functional.dropout(row + 1), randomness="different")(x)
    torch.manual_seed(3)
    assert torch.equal(vmap(lambda row: nn.functional.dropout(row + 1), randomness="different")(x), first)


def test_forward_mode() -> None:
    def tangent(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, t)
            model_out = nn.functional.gelu(dual @ dual.mT).log_softmax(-1)
            result = fwAD.unpack_dual(model_out).tangent
            assert result is not None
            return result

    both(tangent, torch.randn(4, 6), torch.randn(4, 6))


def test_forward_over_reverse() -> None:
    def product(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return jvp(grad(smooth), (x,), (v,))[1]

    both(product, torch.randn(2, 5), torch.randn(2, 5))


def test_double_backward() -> None:
    def penalty(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(smooth(x), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    both(penalty, torch.randn(4, 5))


@pytest.mark.parametrize("fast", [False, True])
def test_gradcheck(fast: bool) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, device=DEVICE, requires_grad=True)
    w = torch.randn(4, 2, dtype=torch.float64, device=DEVICE, requires_grad=True)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(x @ w).cumsum(0)

    options = {"check_forward_ad": True, "check_backward_ad": True, "check_batched_grad": True}
    assert torch.autograd.gradcheck(function, (x, w), fast_mode=fast, **options)
    assert torch.autograd.gradgradcheck(function, (x, w), fast_mode=fast)


def test_gradcheck_finds_a_wrong_gradient() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 3

    x = torch.randn(3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(Wrong.apply, (x,))


def test_custom_function_with_setup_context_under_transforms() -> None:
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return g * 3 * x**2

    both(lambda x: vmap(grad(lambda y: Cube.apply(y).sum()))(x), torch.randn(3, 4))


def test_functional_jacobian_api() -> None:
    both(lambda x: torch.autograd.functional.jacobian(vector, x), torch.randn(2, 3))
    both(lambda x: torch.autograd.functional.jacobian(vector, x, strategy="forward-mode", vectorize=True), torch.randn(2, 3))
    both(lambda x: torch.autograd.functional.hvp(smooth, x, torch.ones_like(x)), torch.randn(4))
    both(
        lambda x: torch.autograd.grad(vector(y := x.requires_grad_()), y, torch.ones(4, 2, 3, device=x.device), is_grads_batched=True),
        torch.randn(2, 3),
    )

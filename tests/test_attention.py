"""Attention: the kernel that is chosen, results and gradients against the CPU."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "neuron"
aten = torch.ops.aten
choose: Any = torch._fused_sdp_choice
sdpa: Any = F.scaled_dot_product_attention


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradient(leaf: torch.Tensor) -> torch.Tensor:
    assert leaf.grad is not None
    return leaf.grad.cpu()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, device: str, **options: Any) -> tuple[torch.Tensor, ...]:
    """Output and the gradients of q, k and v, on the CPU."""
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    leaves = [tensor.to(device, copy=True).requires_grad_() for tensor in (q, k, v)]
    out = sdpa(*leaves, **moved)
    out.backward(draw(*out.shape, dtype=out.dtype, seed=9).to(device))
    return (out.detach().cpu(), *(gradient(leaf) for leaf in leaves))


def agree(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> None:
    for got, expected in zip(attend(q, k, v, DEVICE, **options), attend(q, k, v, "cpu", **options), strict=True):
        torch.testing.assert_close(got, expected)


class Dispatched(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the ops that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def ran_flash(*args: Any, **options: Any) -> bool:
    with Dispatched() as mode:
        sdpa(*args, **options)
    return "_scaled_dot_product_flash_attention_for_cpu" in mode.names


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 16, 8), (1, 2, 37, 24), (2, 4, 130, 64)], ids=str)
def test_matches_cpu(shape: tuple[int, ...], is_causal: bool, dtype: torch.dtype) -> None:
    q, k, v = (draw(*shape, dtype=dtype, seed=seed) for seed in range(3))
    agree(q, k, v, is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(7, 19), (33, 5), (1, 40)])
def test_query_and_key_lengths_differ(queries: int, keys: int, is_causal: bool) -> None:
    agree(draw(2, 3, queries, 16), draw(2, 3, keys, 16, seed=1), draw(2, 3, keys, 16, seed=2), is_causal=is_causal)


@pytest.mark.parametrize("sizes", [(10, 12), (2, 1, 10, 12), (2, 3, 10, 12), (1, 1, 1, 12)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(sizes: tuple[int, ...], kind: str) -> None:
    mask = draw(*sizes, seed=5)
    q, k, v = draw(2, 3, 10, 16), draw(2, 3, 12, 16, seed=1), draw(2, 3, 12, 16, seed=2)
    agree(q, k, v, attn_mask=mask > -1 if kind == "bool" else mask)


def test_rows_masked_entirely_give_what_the_cpu_gives() -> None:
    mask = torch.ones(6, 6, dtype=torch.bool).tril(-1)  # the first row sees nothing
    q, k, v = (draw(1, 2, 6, 8, seed=seed) for seed in range(3))
    out = sdpa(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), attn_mask=mask.to(DEVICE))
    torch.testing.assert_close(out.cpu(), sdpa(q, k, v, attn_mask=mask), equal_nan=True)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_queries(kv_heads: int) -> None:
    q, k, v = draw(2, 8, 12, 16), draw(2, kv_heads, 12, 16, seed=1), draw(2, kv_heads, 12, 16, seed=2)
    agree(q, k, v, enable_gqa=True, is_causal=True)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_scale(scale: float) -> None:
    agree(*(draw(1, 2, 9, 32, seed=seed) for seed in range(3)), scale=scale)


@pytest.mark.parametrize("value_dim", [8, 40])
def test_value_head_dim_differs(value_dim: int) -> None:
    agree(draw(1, 2, 9, 16), draw(1, 2, 9, 16, seed=1), draw(1, 2, 9, value_dim, seed=2))


def test_three_dimensions_and_strided_heads() -> None:
    agree(*(draw(3, 9, 16, seed=seed) for seed in range(3)))
    packed = draw(2, 11, 3 * 4 * 8)
    for device in ("cpu", DEVICE):
        q, k, v = (part.view(2, 11, 4, 8).transpose(1, 2) for part in packed.to(device).split(32, dim=2))
        out = sdpa(q, k, v, is_causal=True).cpu()
        torch.testing.assert_close(out, sdpa(q.cpu(), k.cpu(), v.cpu(), is_causal=True))


def test_gradient_of_a_float_mask() -> None:
    results = []
    for device in ("cpu", DEVICE):
        q, k, v = (draw(1, 2, 6, 8, seed=seed).to(device) for seed in range(3))
        mask = draw(6, 6, seed=4).to(device).requires_grad_()
        sdpa(q, k, v, attn_mask=mask).square().sum().backward()
        results.append(gradient(mask))
    torch.testing.assert_close(*results)


# ---- The choice ----


def choices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> tuple[int, int]:
    moved = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    return choose(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), **moved), choose(q, k, v, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"dropout_p": 0.1}, {"attn_mask": torch.ones(6, 6, dtype=torch.bool)}, {"enable_gqa": True}],
    ids=lambda options: " ".join(options) or "plain",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_chooses_as_the_cpu_does(options: dict[str, Any], dtype: torch.dtype) -> None:
    got, expected = choices(*(draw(2, 2, 6, 8, dtype=dtype, seed=seed) for seed in range(3)), **options)
    assert got == expected


def test_flash_runs_as_one_op_and_math_when_it_must() -> None:
    q, k, v = (draw(2, 2, 6, 8, seed=seed).to(DEVICE) for seed in range(3))
    assert ran_flash(q, k, v, is_causal=True)
    assert not ran_flash(q, k, v, dropout_p=0.1)
    with sdpa_kernel(SDPBackend.MATH):
        assert not ran_flash(q, k, v)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert ran_flash(q, k, v)


# ---- Dropout, autocast, modules ----


def test_dropout_draws_from_the_device_generator() -> None:
    q, k, v = (draw(4, 4, 32, 8, seed=seed).to(DEVICE) for seed in range(3))
    torch.manual_seed(3)
    first = sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(sdpa(q, k, v, dropout_p=0.5), first)
    plain = sdpa(q, k, v)
    mean = torch.stack([sdpa(q, k, v, dropout_p=0.5) for _ in range(400)]).mean(0)
    assert (mean - plain).abs().mean().item() < 0.03
    assert not torch.equal(first, plain)


def test_autocast_runs_in_bfloat16() -> None:
    q, k, v = (draw(2, 2, 16, 8, seed=seed) for seed in range(3))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out = sdpa(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float().cpu(), sdpa(q, k, v), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("training", [True, False])
def test_multi_head_attention_module(training: bool) -> None:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True).train(training)
    x = draw(2, 10, 32)
    with torch.set_grad_enabled(training):
        expected, weights = module(x, x, x)
        got, got_weights = module.to(DEVICE)(x.to(DEVICE), x.to(DEVICE), x.to(DEVICE))
    torch.testing.assert_close(got.detach().cpu(), expected.detach())
    torch.testing.assert_close(got_weights.detach().cpu(), weights.detach())


@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder(training: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).train(training)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x = draw(2, 10, 32)
    with torch.set_grad_enabled(training):
        expected = model(x)
        got = model.to(DEVICE)(x.to(DEVICE))
    torch.testing.assert_close(got.detach().cpu(), expected.detach())


# ---- CUDA's signature over the same kernel ----


@pytest.mark.parametrize("is_causal", [False, True])
def test_overrideable_pair(is_causal: bool) -> None:
    q, k, v = (draw(2, 2, 6, 8, seed=seed) for seed in range(3))
    leaves = [tensor.to(DEVICE).requires_grad_() for tensor in (q, k, v)]
    out, logsumexp, *_ = aten._scaled_dot_product_fused_attention_overrideable(*leaves, is_causal=is_causal)
    grad = draw(*out.shape, seed=9)
    out.backward(grad.to(DEVICE))
    got = (out.detach().cpu(), *(gradient(leaf) for leaf in leaves))
    for actual, expected in zip(got, attend(q, k, v, "cpu", is_causal=is_causal), strict=True):
        torch.testing.assert_close(actual, expected)
    assert logsumexp.shape == (2, 2, 6)


def test_overrideable_refuses_dropout_with_the_remedy() -> None:
    q = draw(1, 1, 4, 8).to(DEVICE)
    with pytest.raises(RuntimeError, match=r"dropout_p=0.5.*scaled_dot_product_attention, which takes the math kernel"):
        aten._scaled_dot_product_fused_attention_overrideable(q, q, q, dropout_p=0.5)


def test_wrong_shapes_raise_what_the_cpu_raises() -> None:
    messages = []
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError) as caught:
            sdpa(*(torch.ones(2, 3, 4, size, device=device) for size in (8, 16, 16)))
        messages.append(str(caught.value).replace(DEVICE, "cpu").splitlines()[0])
    assert messages[0] == messages[1]

"""torch.autocast("neuron") and GradScaler."""

import threading

import pytest
import torch
from torch.nn import functional

neuron = torch.neuron


@pytest.fixture
def ab():
    return torch.randn(4, 4, device="neuron"), torch.randn(4, 4, device="neuron")


def test_default_dtype_is_bfloat16(ab):
    assert torch.get_autocast_dtype("neuron") == torch.bfloat16
    with torch.autocast("neuron"):
        assert (ab[0] @ ab[1]).dtype == torch.bfloat16


def test_default_dtype_on_another_thread(ab):
    seen = []

    def work():
        ab[0].add(1)
        with torch.autocast("neuron"):
            seen.append((ab[0] @ ab[1]).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("asked", [None, torch.bfloat16, torch.float16])
def test_default_dtype_on_a_thread_that_has_not_used_the_device(ab, asked):
    seen = []

    def work():
        with torch.autocast("neuron", dtype=asked):
            seen.append((ab[0] @ ab[1]).dtype)
        seen.append(torch.get_autocast_dtype("neuron"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [asked or torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "op", [torch.mm, torch.matmul, functional.linear, lambda a, b: torch.addmm(a, a, b), lambda a, b: torch.einsum("ij,jk->ik", a, b)]
)
def test_lower_precision(ab, dtype, op):
    with torch.autocast("neuron", dtype=dtype):
        result = op(*ab)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float().cpu(), op(ab[0].cpu(), ab[1].cpu()), rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    "op",
    [
        torch.exp,
        torch.log1p,
        lambda x: x.abs().pow(0.5),
        lambda x: functional.layer_norm(x, (4,)),
        lambda x: functional.softmax(x, -1),
        lambda x: x.sum(),
        lambda x: x.cumsum(0),
        lambda x: x.norm(),
        lambda x: functional.mse_loss(x, x),
        lambda x: functional.binary_cross_entropy_with_logits(x, x),
    ],
)
def test_float32(ab, op):
    with torch.autocast("neuron"):
        assert op(ab[0].bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(
    "op",
    [
        torch.linalg.inv,
        torch.linalg.svdvals,
        torch.linalg.qr,
        torch.linalg.eigvalsh,
        lambda x: torch.linalg.solve(x, torch.ones(4, 1, device=x.device)),
        lambda x: torch.linalg.lstsq(x, torch.ones(4, 1, device=x.device)),
        torch.pinverse,
        lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        lambda x: x.quantile(0.5),
    ],
)
def test_what_has_no_narrow_kernel_runs_in_float32(ab, op):
    """The argument is a product, so autocast has made it narrow."""
    with torch.autocast("neuron"):
        result = op(ab[0] @ ab[0].T + torch.eye(4, device="neuron"))
    assert (result if isinstance(result, torch.Tensor) else result[0]).dtype == torch.float32


def test_promote(ab):
    with torch.autocast("neuron"):
        assert torch.addcmul(ab[0], ab[0].bfloat16(), ab[1].bfloat16()).dtype == torch.float32
        assert torch.dot(ab[0][0].bfloat16(), ab[1][0]).dtype == torch.float32


def test_the_rest_keeps_its_dtype(ab):
    with torch.autocast("neuron"):
        assert (ab[0].bfloat16() + ab[1].bfloat16()).dtype == torch.bfloat16
        assert functional.relu(ab[0]).dtype == torch.float32
        assert (ab[0] > 0).dtype == torch.bool
        assert ab[0].double().mm(ab[1].double()).dtype == torch.float64  # autocast leaves double alone


def test_binary_cross_entropy_is_banned(ab):
    with torch.autocast("neuron"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(ab[0].sigmoid(), ab[1].sigmoid())


def test_nesting_and_disabling(ab):
    with torch.autocast("neuron"):
        with torch.autocast("neuron", enabled=False):
            assert (ab[0] @ ab[1]).dtype == torch.float32
        assert (ab[0] @ ab[1]).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("neuron")


def test_unsupported_dtype_warns(ab):
    assert neuron.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]
    with pytest.warns(UserWarning, match="bfloat16"), torch.autocast("neuron", dtype=torch.float64):
        assert (ab[0] @ ab[1]).dtype == torch.float32


def test_weight_cache_and_backward():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).to("neuron")
    x = torch.randn(16, 4, device="neuron")
    with torch.autocast("neuron"):
        loss = model(x).float().square().mean() + model(x).float().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_custom_function():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="neuron", cast_inputs=torch.float32)
        def forward(ctx, a, b):
            assert not torch.is_autocast_enabled("neuron")
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="neuron")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad @ b.T, a.T @ grad

    a = torch.randn(4, 4, device="neuron", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("neuron"):
        result = Product.apply(a, torch.randn(4, 4, device="neuron"))
    assert result.dtype == torch.float32
    result.sum().backward()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_grad_scaler(optimizer):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to("neuron")
    step = optimizer(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("neuron", init_scale=256.0, growth_interval=2)
    x = torch.randn(32, 4, device="neuron")
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(20):
        with torch.autocast("neuron", dtype=torch.float16):
            loss = functional.mse_loss(model(x).float(), y)
        step.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(step)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert scaler.get_scale() > 256.0


def test_grad_scaler_skips_a_step_with_infinities():
    model = torch.nn.Linear(2, 1).to("neuron")
    step = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("neuron", init_scale=4.0)
    before = model.weight.detach().cpu().clone()
    loss = model(torch.full((1, 2), float("inf"), device="neuron")).sum()
    scaler.scale(loss).backward()
    scaler.step(step)
    scaler.update()
    assert torch.equal(model.weight.detach().cpu(), before)
    assert scaler.get_scale() == 2.0
    state = scaler.state_dict()
    scaler.load_state_dict(state)
    assert scaler.state_dict() == state

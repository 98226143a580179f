"""The eager path: cache keys, metadata, when errors surface. See docs/dev/eager.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_neuronx
from torch_neuronx import _C

DEVICE = "neuron"


def op_counts(name: str) -> dict[str, int]:
    return _C._counters()["ops"].get(name, {"calls": 0, "hits": 0, "misses": 0, "inline": 0})


def new_counts(name: str, run: Callable[[], Any]) -> dict[str, int]:
    """What one overload counted while ``run`` ran."""
    before = op_counts(name)
    run()
    after = op_counts(name)
    return {key: after[key] - before[key] for key in after}


def test_second_call_hits_and_runs_once() -> None:
    x = torch.randn(3, 7, device=DEVICE)
    first = new_counts("aten::add.Tensor", lambda: x + x)
    second = new_counts("aten::add.Tensor", lambda: x + x)
    assert first["misses"] <= 1 and second == {"calls": 1, "hits": 1, "misses": 0, "inline": 0}


def test_changing_scalars_hit() -> None:
    x = torch.ones(5, device=DEVICE)
    torch.add(x, x, alpha=0.5)
    x.mul(2.0)
    counts = new_counts("aten::add.Tensor", lambda: [torch.add(x, x, alpha=k + 0.25) for k in range(20)])
    assert counts["misses"] == 0 and counts["hits"] == 20
    counts = new_counts("aten::mul.Tensor", lambda: [x.mul(float(k)) for k in range(20)])
    assert counts["misses"] == 0
    assert x.mul(19.0).cpu().tolist() == [19.0] * 5


def test_scalar_type_is_in_the_key() -> None:
    x = torch.ones(3, dtype=torch.int64, device=DEVICE)
    assert x.mul(2).dtype == torch.int64
    assert x.mul(2.5).dtype == torch.float32
    assert x.mul(2).dtype == torch.int64


def test_arange_values_are_in_the_key() -> None:
    for n in (3, 5, 3):
        assert torch.arange(n, device=DEVICE).tolist() == list(range(n))
    assert torch.arange(0, 1, 0.25, device=DEVICE).tolist() == [0, 0.25, 0.5, 0.75]


def test_slices_at_other_offsets_hit() -> None:
    x = torch.arange(100.0, device=DEVICE)
    x[0:10].neg()
    counts = new_counts("aten::neg", lambda: [x[k : k + 10].neg() for k in range(1, 20)])
    assert counts["misses"] == 0
    assert x[7:10].neg().tolist() == [-7, -8, -9]


@pytest.mark.parametrize(
    "scatter",
    [
        lambda x, v: torch.diagonal_scatter(x, v),
        lambda x, v: torch.select_scatter(x, v, 0, 1),
        lambda x, v: torch.slice_scatter(x, v[None], 0, 1, 2),
        lambda x, v: torch.as_strided_scatter(x, v, (4,), (2,), int(x.storage_offset())),
    ],
)
def test_results_that_take_over_an_offset(scatter: Callable[..., torch.Tensor]) -> None:
    """These copy their argument with its strides and offset; the first call may be at any offset."""
    base = torch.arange(40.0)
    ours = base.to(DEVICE)
    values = torch.full((4,), -1.0)
    for offset in (3, 0, 5, 3):
        place = ((4, 4), (8, 2), offset)
        expected = scatter(base.as_strided(*place), values)
        actual = scatter(ours.as_strided(*place), values.to(DEVICE))
        assert torch.equal(actual.cpu(), expected) and actual.stride() == expected.stride()


def test_strides_of_dimensions_of_size_one_are_kept() -> None:
    base = torch.arange(6.0)
    for strides in ((6, 6, 1), (1, 3, 1), (6, 6, 1)):
        x = base.as_strided((1, 1, 6), strides)
        assert base.to(DEVICE).as_strided((1, 1, 6), strides).clone().stride() == x.clone().stride()


def test_strides_of_empty_vectors_are_kept() -> None:
    x = torch.arange(6.0).as_strided((0,), (2,))
    ours = torch.arange(6.0).to(DEVICE).as_strided((0,), (2,))
    for _ in range(2):
        assert ours.clone().stride() == x.clone().stride() == (2,)


def test_a_list_that_a_kernel_writes_into() -> None:
    """_unsafe_masked_index puts clamped indices into the list that it gets; the next call must not see them."""
    x, mask = torch.arange(5.0, device=DEVICE), torch.ones(2, dtype=torch.bool, device=DEVICE)
    for k in range(4):
        index = [torch.tensor([k, 0], device=DEVICE)]
        assert torch.ops.aten._unsafe_masked_index(x, mask, index, -1.0).tolist() == [k, 0]
        counts = torch.ops.aten._unsafe_masked_index_put_accumulate(
            torch.zeros(5, device=DEVICE), mask, index, torch.ones(2, device=DEVICE)
        )
        assert counts.nonzero().flatten().tolist() == sorted({0, k})


def test_a_scalar_that_changes_the_order_of_allocations() -> None:
    """With ord=0 _foreach_norm makes other temporaries than with ord=1, so that results lie in each other's blocks."""
    values = [0.5, -2.0, 3.0, -4.0, 5.0, 6.0]
    tensors = [torch.tensor(value, device=DEVICE) for value in values]
    for order in (0, 1, 2, 0, 1):
        wanted = [float(value != 0) if order == 0 else abs(value) for value in values]
        assert [norm.item() for norm in torch._foreach_norm(tensors, order, dtype=torch.float64)] == wanted


def test_zero_tensors_have_views() -> None:
    """What forward-mode AD stands in for "no tangent": zeros without memory."""
    zero = torch._efficientzerotensor((4, 6), device=DEVICE)
    for view in (zero.expand(2, 4, 6), zero.t(), zero[1], zero.diagonal(), zero.unfold(0, 2, 1), zero.unsqueeze(0)):
        assert view._is_zerotensor() and not view.clone().any()
    assert (zero.t() + 1).sum().item() == 24


def test_default_dtype_is_in_the_key() -> None:
    x = torch.arange(4, device=DEVICE)
    assert (x / 2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (x / 2).dtype == torch.float32


def test_queued_work_does_not_see_a_later_default_dtype() -> None:
    x = torch.arange(4, device=DEVICE)
    for make in (lambda: torch.sin(x), lambda: torch.zeros(3, device=DEVICE), lambda: x / 2, lambda: torch.full((2,), 0.5, device=DEVICE)):
        make()
        try:
            y = make()
            torch.set_default_dtype(torch.float64)
            torch.neuron.synchronize()
            z = make()
        finally:
            torch.set_default_dtype(torch.float32)
        torch.neuron.synchronize()
        assert y.dtype == torch.float32 and z.dtype == torch.float64
        torch.testing.assert_close(y.double(), z, rtol=1e-6, atol=1e-6)


def test_aliased_arguments() -> None:
    x = torch.arange(6.0, device=DEVICE)
    for _ in range(2):
        y = x.clone()
        y.add_(y)
        assert y.tolist() == [0, 2, 4, 6, 8, 10]
        y[1:].copy_(y[1:])
        assert y.tolist() == [0, 2, 4, 6, 8, 10]
        with pytest.raises(RuntimeError, match="single memory location"):
            y[1:].add_(y[:-1])
        torch.neuron.synchronize()
    a, b = x[:3], x[3:]
    assert [torch.mul(a, b, out=torch.empty(3, device=DEVICE)).tolist() for _ in range(2)] == [[0, 4, 10]] * 2


def test_out_is_resized_like_on_cpu() -> None:
    x = torch.ones(2, 3, device=DEVICE)
    for _ in range(2):
        out = torch.empty(0, device=DEVICE)
        assert torch.add(x, x, out=out) is out
        assert out.shape == (2, 3) and out.cpu().eq(2).all()


def test_boolean_mask_is_dynamic_and_integer_index_is_cached() -> None:
    x = torch.arange(6.0, device=DEVICE)
    index = torch.tensor([0, 3], device=DEVICE)
    x[index]
    assert new_counts("aten::index.Tensor", lambda: x[index])["hits"] == 1
    for limit, kept in ((2, 3), (4, 1), (9, 0)):
        assert x[x > limit].shape == (kept,)


def test_cpu_index_is_moved_as_on_cuda() -> None:
    x = torch.arange(6.0, device=DEVICE)
    assert x[torch.tensor([5, 0])].tolist() == [5, 0]
    x[torch.tensor([1])] = 7.0
    assert x[1].item() == 7


def test_shape_errors_are_immediate_and_leave_no_entry() -> None:
    a, b = torch.ones(2, device=DEVICE), torch.ones(3, device=DEVICE)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="must match the size"):
            a + b
    assert (a + a).tolist() == [2, 2]


def test_data_errors_surface_once_with_the_name_of_the_op() -> None:
    x = torch.arange(3.0, device=DEVICE)
    good, bad = torch.tensor([0], device=DEVICE), torch.tensor([9], device=DEVICE)
    x[good]
    torch.neuron.synchronize()
    y = x[bad]  # a hit: nothing has run yet
    with pytest.raises(IndexError, match=r"out of bounds.*aten::index\.Tensor"):
        torch.neuron.synchronize()
    torch.neuron.synchronize()  # once
    assert y.shape == (1,)
    assert x[good].tolist() == [0]


def test_recorded_python_line_of_a_late_error(run_python: Callable[..., Any]) -> None:
    code = """
import torch
x = torch.arange(3.0, device="neuron")
for bad in (0, 9):
    y = x[torch.tensor([0, bad]).to("neuron")]
try:
    torch.neuron.synchronize()
except IndexError as error:
    print(error)
"""
    result = run_python(code, TORCH_NEURONX_ENABLE_STACK_TRACE="1")
    assert "It was called at <string>:5" in result.stdout, result.stdout + result.stderr


def test_error_of_a_miss_and_of_a_hit_are_of_one_type() -> None:
    x = torch.arange(4.0, device=DEVICE)
    bad = torch.tensor([[9, 1]], device=DEVICE)
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        x[bad]  # first call: runs inline
    x[torch.tensor([[0, 1]], device=DEVICE)]
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        x[bad]
        torch.neuron.synchronize()


def test_mixed_devices() -> None:
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"same device.*neuron:0 and cpu"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match=r"same device"):
        torch.add(x, x, out=torch.empty(3))
    with pytest.raises(RuntimeError, match=r"neuron:0 and neuron:1"):
        x + torch.ones(3, device="neuron:1")
    assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]  # 0-dim CPU tensors are numbers


def test_value_of_a_cpu_scalar_is_taken_at_the_call() -> None:
    x = torch.zeros(4, device=DEVICE)
    number = torch.tensor(1.0)
    x + number
    y = x + number
    number.fill_(100.0)
    assert y.tolist() == [1, 1, 1, 1]


def test_views_are_views() -> None:
    x = torch.zeros(4, 4, device=DEVICE)
    x.t()[1].fill_(1)
    x.view(-1)[::5].mul_(3)
    torch.as_strided(x, (2,), (8,), 1).add_(10)
    expected = torch.zeros(4, 4)
    expected.t()[1].fill_(1)
    expected.view(-1)[::5].mul_(3)
    torch.as_strided(expected, (2,), (8,), 1).add_(10)
    assert torch.equal(x.cpu(), expected)
    assert x.t()._base is x


def test_foreach_is_one_call_each() -> None:
    xs = [torch.ones(k + 1, device=DEVICE) for k in range(30)]
    torch.neuron.synchronize()  # what waits in a window is no launch yet
    before = _C._counters()["launches"]
    torch._foreach_add_(xs, 1.0)
    torch.neuron.synchronize()
    first = _C._counters()["launches"]
    torch._foreach_add_(xs, 2.0)
    torch.neuron.synchronize()
    assert _C._counters()["launches"] - first == 1 and first - before <= 1
    assert all(x.eq(4).all() for x in xs)
    assert [y.shape for y in torch._foreach_mul(xs, xs)] == [x.shape for x in xs]


@pytest.mark.parametrize("name", ["_foreach_addcmul", "_foreach_addcdiv", "_foreach_addcmul_", "_foreach_addcdiv_"])
def test_foreach_numbers_in_a_tensor(name: str) -> None:
    """On the host, as CUDA wants them, or on the device. Other numbers make no other Program."""
    lists = [[torch.full((n + 1,), float(n + k + 1)) for n in range(3)] for k in range(3)]
    for device, values in (("cpu", [1.0, 2.0, 3.0]), (DEVICE, [1.0, 2.0, 3.0]), ("cpu", [0.5, 4.0, -1.0])):
        ours = [[x.to(DEVICE) for x in tensors] for tensors in lists]
        theirs = [[x.clone() for x in tensors] for tensors in lists]
        numbers = torch.tensor(values, device=device)
        before = _C._counters()["cached_programs"]
        result = getattr(torch, name)(*ours, numbers) or ours[0]
        made = _C._counters()["cached_programs"] - before
        expected = getattr(torch, name)(*theirs, torch.tensor(values)) or theirs[0]
        torch.testing.assert_close([x.cpu() for x in result], expected)
    assert made == 0
    with pytest.raises(RuntimeError, match="Expected length of scalars to match input of length 3 but got 2"):
        getattr(torch, name)(*ours, torch.ones(2))


def test_eviction_keeps_results_right(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(64.0, device=DEVICE)
    pending = [x[:n] * 2 for n in range(1, 40)]
    _C._clear_program_cache()
    pending += [x[:n] * 2 for n in range(1, 40)]
    _C._clear_program_cache()
    assert all(torch.equal(y.cpu(), torch.arange(float(y.numel())) * 2) for y in pending)


def test_grad_mode_and_inference_mode() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference() and not y.requires_grad
    y = x * 2
    assert y.requires_grad and not y.is_inference()
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


def test_conj_and_neg_views() -> None:
    c = torch.randn(3, 3, dtype=torch.complex64)
    d = c.to(DEVICE)
    for _ in range(2):
        torch.testing.assert_close((d.conj() @ d).cpu(), c.conj() @ c)
        torch.testing.assert_close(d.conj().imag.cpu(), c.conj().imag)
        torch.testing.assert_close(d.conj().cpu(), c.conj().resolve_conj())


def test_rnn_cells_have_kernels_of_their_own() -> None:
    for cell in (torch.nn.LSTM(4, 6, num_layers=2), torch.nn.GRU(4, 6)):
        x = torch.randn(5, 3, 4)
        expected, _ = cell(x)
        expected.sum().backward()
        gradients = [p.grad.clone() for p in cell.parameters() if p.grad is not None]
        cell.zero_grad()
        cell.to(DEVICE)
        actual, _ = cell(x.to(DEVICE))
        actual.sum().backward()
        torch.testing.assert_close(actual.cpu(), expected)
        for p, g in zip(cell.parameters(), gradients, strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad.cpu(), g)


def test_explain_names_the_key_field_that_changed() -> None:
    x = torch.ones(2, 3, device=DEVICE)
    x.exp()
    with torch_neuronx.explain() as report:
        x.exp()
        torch.ones(4, 3, device=DEVICE).exp()
    reasons = [m["reason"] for m in report.as_dict()["misses"] if m["op"] == "aten::exp"]
    assert len(reasons) == 1 and "sizes [2, 3] -> Float sizes [4, 3]" in reasons[0]

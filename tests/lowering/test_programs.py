"""Programs on storages: strided, offset and overlapping inputs, writes through views, aliases in the HLO, payloads, random words."""

from typing import Any

import pytest
import torch

from tests.lowering.check import run_lowered
from tests.lowering.run import run_call
from torch_neuronx.lowering import NotLowered, Program, lower, to_hlo, to_stablehlo
from torch_neuronx.lowering.executor import ProgramRun
from torch_neuronx.lowering.hlo import aliases_of, hlo_text

aten = torch.ops.aten


def base(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape) + 1


# What a tensor may look like on its storage.
PLACES = {
    "contiguous": lambda x: x,
    "offset": lambda x: x[2:],
    "transposed": lambda x: x.t(),
    "steps": lambda x: x[::2, 1::3],
    "column": lambda x: x[:, 1],
    "inner box": lambda x: x[1:4, 2:5],
    "turned box": lambda x: x[1:4, 2:5].t(),
    "broadcast": lambda x: x[:, :1].expand(6, 8),
    "windows": lambda x: x.as_strided((5, 4), (3, 2), 2),
    "three dimensions": lambda x: x.reshape(3, 2, 8).permute(2, 0, 1)[1:6, :, 1:],
}


@pytest.mark.parametrize("place", PLACES)
def test_reads(place: str) -> None:
    x = PLACES[place](base(6, 8))
    (result,) = run_call(aten.mul.Tensor, x, x.clone())
    torch.testing.assert_close(result, x * x)


@pytest.mark.parametrize("place", [name for name in PLACES if name not in ("broadcast", "windows")])
def test_writes_leave_the_rest_of_the_storage_alone(place: str) -> None:
    ours, theirs = base(6, 8), base(6, 8)
    target, wanted = PLACES[place](ours), PLACES[place](theirs)
    other = torch.rand(wanted.shape)
    (returned,) = run_call(aten.add_.Tensor, target, other, alpha=3.0)
    wanted.add_(other, alpha=3.0)
    torch.testing.assert_close(ours, theirs)
    assert returned.data_ptr() == target.data_ptr() and returned.stride() == target.stride()


def test_arguments_on_one_storage_see_each_other() -> None:
    x, y = base(8), base(8)
    run_call(aten.copy_.default, x[2:6], x[0:4])
    y[2:6].copy_(y[0:4].clone())
    torch.testing.assert_close(x, y)


def graph_of(fn: Any, *inputs: torch.Tensor) -> ProgramRun:
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(fn)(*(tensor.clone() for tensor in inputs))
    return ProgramRun(Program.from_graph(module, inputs))


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half].clone(), x[..., half:].clone()
    x[..., :half] = first * cos - second * sin
    x[..., half:] = first * sin + second * cos
    return x


def in_place_through_views(x: torch.Tensor) -> torch.Tensor:
    rows = x.view(4, 2, 6)
    rows[:, 1].mul_(2)
    rows.transpose(0, 2)[1] += 1
    x.diagonal()[:3].fill_(7)
    return rows.sum(1) + x.as_strided((4, 6), (2, 1), 1)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (rotary, [(2, 3, 8), (3, 4), (3, 4)]),
        (in_place_through_views, [(8, 6)]),
        (lambda x: x.t() @ x, [(5, 3)]),
        (lambda x, w: torch.nn.functional.conv2d(x.to(memory_format=torch.channels_last), w), [(2, 3, 6, 6), (4, 3, 3, 3)]),
        (lambda x: x.unfold(0, 3, 1) * 2, [(7,)]),
    ],
    ids=["rotary embedding", "writes through views", "transposed matmul", "channels_last convolution", "overlapping windows"],
)
def test_whole_graphs_with_views(fn: Any, shapes: list[tuple[int, ...]]) -> None:
    inputs = [torch.rand(shape) for shape in shapes]
    run = graph_of(fn, *inputs)
    ours, theirs = [t.clone() for t in inputs], [t.clone() for t in inputs]
    (result,), wanted = run(*ours), fn(*theirs)
    torch.testing.assert_close(result, wanted)
    assert result.stride() == wanted.stride()
    torch.testing.assert_close(ours, theirs)
    changed = [index for index, (a, b) in enumerate(zip(theirs, inputs, strict=True)) if not torch.equal(a, b)]
    assert run.lowered.written == changed
    assert aliases_of(hlo_text(run.lowered.hlo())) == dict(enumerate(changed))


def test_an_input_that_is_only_viewed_is_not_copied() -> None:
    x = base(4, 6)
    run = ProgramRun(Program.from_call(aten.transpose.int, (x, 0, 1)))
    (result,) = run(x)
    assert result.data_ptr() == x.data_ptr() and not run.lowered.written
    assert "ROOT %tuple" in hlo_text(run.lowered.hlo())


def test_zeta_below_zero() -> None:
    """Far from where XLA's own is accurate."""
    q = torch.tensor([-8.5, -3.25, -0.5, 0.0, 0.75, 4.0, -2.0])
    for n in (1, 2, 3):
        x = q[:-1].clone()  # at the pole PyTorch gives a large number for n = 1
        torch.testing.assert_close(run_call(aten.polygamma.default, n, x)[0], torch.polygamma(n, x), rtol=2e-5, atol=1e-5)
    s = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5, 1.0, 2.5])
    torch.testing.assert_close(run_call(aten.special_zeta.default, s, q)[0], torch.special.zeta(s, q), equal_nan=True)


def test_numbers_are_parameters() -> None:
    x, m, v = torch.rand(5), torch.rand(5), torch.rand(5) + 1
    program = Program.from_call(aten.addcdiv_.default, (x, m, v), {"value": -0.1})
    run = ProgramRun(program)
    assert not run.lowered.specialised
    program.payloads[0] = -0.7
    wanted = x.clone().addcdiv_(m, v, value=-0.7)
    run(x, m, v)
    torch.testing.assert_close(x, wanted)


FOREACH = {
    "addcdiv.ScalarList": (aten._foreach_addcdiv_.ScalarList, lambda x, y, k: (x, y, y, [k, 2 * k])),
    "add.Scalar": (aten._foreach_add_.Scalar, lambda x, y, k: (x, k)),
    "mul.List": (aten._foreach_mul_.List, lambda x, y, k: (x, y)),
    "add.List": (lambda x, y, k: aten._foreach_add_.List(x, y, alpha=k), lambda x, y, k: (x, y, k)),
    "lerp.Scalar": (aten._foreach_lerp_.Scalar, lambda x, y, k: (x, y, k)),
    "pow.ScalarList": (aten._foreach_pow_.ScalarList, lambda x, y, k: (x, [k, 2])),
    "sqrt": (aten._foreach_sqrt_.default, lambda x, y, k: (x,)),
    "maximum.Scalar": (aten._foreach_maximum_.Scalar, lambda x, y, k: (x, k)),
    "_fused_sgd_": (
        lambda *args: aten._fused_sgd_.default(
            *args[:2], [], weight_decay=0.1, momentum=0.0, lr=args[2], dampening=0.0, nesterov=False, maximize=False, is_first_step=False
        ),
        lambda x, y, k: (x, y, k),
    ),
}


@pytest.mark.parametrize("name", FOREACH)
def test_a_step_of_an_optimizer_is_one_module_whatever_its_numbers(name: str) -> None:
    from torch_neuronx.lowering.executor import Executor

    op, arguments = FOREACH[name]
    start, other = [torch.rand(3), torch.rand(2, 2)], [torch.rand(3) + 0.5, torch.rand(2, 2) + 0.5]
    ours, theirs, on_device = ([x.clone().to(device) for x in xs] for xs, device in ((start, "neuron"), (start, "cpu"), (other, "neuron")))
    with Executor() as executor:
        for number in (0.5, 0.25, 1.5):
            op(*arguments(ours, on_device, number))
    assert executor.calls == 3 and len(executor.runs) == 1 and not executor.kept
    for number in (0.5, 0.25, 1.5):
        op(*arguments(theirs, other, number))
    torch.testing.assert_close([x.cpu() for x in ours], theirs)


def test_what_reads_a_tensor_on_the_host() -> None:
    """PyTorch's C++ code asks for the memory of the indices: as one call, and inside of a function."""
    x, at = base(6, 4), torch.tensor([1, 3])
    for split in (
        lambda: lower(Program.from_call(aten.tensor_split.tensor_indices_or_sections, (x, at))),
        lambda: to_stablehlo(lambda x, at: torch.tensor_split(x, at), x, at),
    ):
        with pytest.raises(NotLowered, match="reads the values of a tensor on the host"):
            split()


def test_repeats_of_a_known_total() -> None:
    """Without ``output_size`` the shape depends on data."""
    x, repeats = base(4, 2), torch.tensor([0, 3, 1, 2])
    (result,) = run_lowered(lambda x, repeats: torch.repeat_interleave(x, repeats, 0, output_size=6), [x, repeats])
    torch.testing.assert_close(result, x.repeat_interleave(repeats, 0))
    with pytest.raises(NotLowered, match="depends on data"):
        to_stablehlo(lambda x, repeats: torch.repeat_interleave(x, repeats, 0), x, repeats)


def test_nonzero_static_of_nothing() -> None:
    (result,) = run_call(aten.nonzero_static.default, torch.zeros(5, 0, 3), size=2, fill_value=7)
    torch.testing.assert_close(result, torch.full((2, 3), 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_masked_scores_has_no_weights(dtype: torch.dtype) -> None:
    """Zeros, where softmax gives NaN."""
    x = torch.rand(4, 5, dtype=dtype).masked_fill_(torch.tensor([True, False, False, False])[:, None], -torch.inf)
    for dim in (0, 1):
        (result,) = run_call(aten._safe_softmax.default, x, dim)
        torch.testing.assert_close(result, aten._safe_softmax.default(x, dim))
    (result,) = run_call(aten._safe_softmax.default, torch.tensor(-torch.inf), 0)
    assert result.item() == 0


def test_a_quotient_is_rounded_before_it_is_cut() -> None:
    """288 / 17 is 16.94, which is 17 in bfloat16. (PyTorch on the CPU says so in its vectors, and 16 for what is left over.)"""
    a, b = torch.tensor([288.0], dtype=torch.bfloat16), torch.tensor([17.0], dtype=torch.bfloat16)
    (result,) = run_call(aten.div.Tensor_mode, a, b, rounding_mode="trunc")
    assert result.item() == 17


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, torch.inf])
def test_rows_of_an_embedding_are_shortened(p: float) -> None:
    """In place, once for each row that is named; Embedding(max_norm=...)."""
    weight, indices = base(5, 4) / 7, torch.tensor([[3, 0], [3, 4]])
    expected = weight.clone()
    aten.embedding_renorm_.default(expected, indices, 1.0, p)
    (result,) = run_call(aten.embedding_renorm_.default, weight, indices, 1.0, p)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(weight, expected)


def test_what_resizes_its_argument() -> None:
    """``resize_as_`` takes the shape of another tensor, whose metadata alone counts."""
    x = base(6, 4)
    (result,) = run_call(aten.resize_as_.default, x, torch.rand(2, 3))
    torch.testing.assert_close(result, base(2, 3))


def test_what_makes_its_argument_larger() -> None:
    """Written part by part: the new elements have a place in the storage, and an older view still shows its own."""

    def written(x: torch.Tensor) -> Any:
        y = x + 1
        first = y.view(-1)
        y.resize_(3, 4)
        y[2].fill_(7)
        y[1, :2] += 1
        y[1, 2:] = 0
        return y * 1, first

    x = base(2, 3)
    for ours, theirs in zip(run_lowered(written, [x]), written(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_looks_at_a_number_is_specialised() -> None:
    x = torch.rand(4, 4)
    run = ProgramRun(Program.from_call(aten._euclidean_dist.default, (x, x + 1)))
    torch.testing.assert_close(run(x, x + 1)[0], torch._euclidean_dist(x, x + 1))
    run = ProgramRun(Program.from_call(aten.renorm.default, (x, 2.0, 0, 0.5)))
    assert run.lowered.specialised
    torch.testing.assert_close(run(x)[0], x.renorm(2.0, 0, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("op", "numbers"),
    [
        (torch.ops.neuron.philox_uniform_.default, (-1.0, 3.0)),
        (torch.ops.neuron.philox_normal_.default, (0.5, 2.0)),
        (torch.ops.neuron.philox_exponential_.default, (1.5,)),
        (torch.ops.neuron.philox_random_.default, (100, -3)),
        (torch.ops.neuron.philox_bernoulli_.default, (0.3,)),
        (torch.ops.neuron.philox_geometric_.default, (0.3,)),
        (torch.ops.neuron.philox_randperm_.default, ()),
    ],
)
def test_random_numbers_are_the_devices(op: Any, numbers: Any, dtype: torch.dtype) -> None:
    seed, offset = 0x1234567890, (1 << 34) - 8  # the counter's carry falls inside
    ours, theirs = torch.empty(37, dtype=dtype), torch.empty(37, dtype=dtype)
    run_call(op, ours, *numbers, seed, offset)
    op(theirs, *numbers, seed, offset)
    torch.testing.assert_close(ours, theirs, rtol=2e-6 if dtype is torch.float32 else None, atol=1e-6 if dtype is torch.float32 else None)


def test_a_graph_draws_words_in_order() -> None:
    run = graph_of(lambda x: (torch.rand_like(x), torch.randn_like(x)), torch.rand(6))
    first, second = run(torch.rand(6), rng=(5, 40))
    uniform = torch.ops.neuron.philox_uniform_(torch.empty(6), 0.0, 1.0, 5, 40)
    normal = torch.ops.neuron.philox_normal_(torch.empty(6), 0.0, 1.0, 5, 48)
    assert torch.equal(first, uniform) and run.lowered.random_words == 16
    torch.testing.assert_close(second, normal, rtol=2e-6, atol=1e-6)


def test_refusals_name_the_op_the_reason_and_the_line() -> None:
    with pytest.raises(NotLowered, match=r"aten::nonzero .*shape of its result depends on data"):
        lower(Program.from_call(aten.nonzero.default, (torch.rand(3),)))
    with pytest.raises(NotLowered, match=r"aten::_local_scalar_dense .*the host needs its value"):
        to_stablehlo(lambda x: x.sum().item(), torch.rand(3))
    with pytest.raises(RuntimeError, match="broadcast"):
        to_stablehlo(lambda x, y: x + y, torch.rand(3), torch.rand(4))
    captured = torch.zeros(3)
    with pytest.raises(RuntimeError, match="closes over"):
        to_stablehlo(lambda x: captured.add_(x), torch.rand(3))


def test_the_users_jax_is_left_alone() -> None:
    import jax
    import jax.numpy as jnp

    before = dict(jax.config.values)
    to_stablehlo(lambda x: x.double().sum(), torch.rand(3))
    assert dict(jax.config.values) == before and jnp.ones(2).dtype == jnp.float32


def test_not_a_module() -> None:
    with pytest.raises(ValueError, match="XLA does not take"):
        to_hlo("module { nonsense }")
    with pytest.raises(ValueError, match="not a serialized"):
        hlo_text(b"garbage")


def test_lowering_is_not_imported_with_torch(run_python: Any) -> None:
    done = run_python("import torch, sys, torch_neuronx.lowering; print('jax' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr

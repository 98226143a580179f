"""Collectives in modules: four replicas of one module on XLA:CPU give what four ranks of PyTorch give."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed

from torch_neuronx.lowering import NotLowered, Program, lower
from torch_neuronx.lowering.execute import CompiledModule
from torch_neuronx.lowering.ops.collectives import mesh_groups

WORLD, RANK = 4, 1


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    """This process is rank 1 of 4; the fake backend sends nothing, and a module is only traced here."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=WORLD)
    yield
    distributed.destroy_process_group()


def name_of(ranks: list[int] | None = None) -> str:
    group = distributed.group.WORLD if ranks is None else distributed.new_group(ranks)
    return group.group_name  # type: ignore[union-attr, no-any-return]


def run(op: Any, inputs: list[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    """The result on each replica, whose inputs are ``inputs``."""
    lowered = lower(Program.from_call(op, (inputs[RANK], *args)))
    assert lowered.replicas == WORLD
    return [results[0] for results in CompiledModule(lowered.hlo(), WORLD).run_replicas([[x] for x in inputs])]


def draws(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randint(0, 5, shape).to(dtype) for _ in range(WORLD)]


functional = torch.ops._c10d_functional
GROUPS = {"world": [[0, 1, 2, 3]], "neighbours": [[0, 1], [2, 3]], "stride 2": [[0, 2], [1, 3]]}
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "avg": lambda x: x.mean(0),
    "product": lambda x: x.prod(0),
    "max": lambda x: x.amax(0),
    "min": lambda x: x.amin(0),
}


def own(groups: list[list[int]], rank: int) -> list[int]:
    return next(group for group in groups if rank in group)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_all_reduce(reduction: str, groups: list[list[int]]) -> None:
    inputs = draws((3, 2), torch.float32)
    found = run(functional.all_reduce.default, inputs, reduction, name_of(own(groups, RANK)))
    for rank, result in enumerate(found):
        wanted = REDUCTIONS[reduction](torch.stack([inputs[other] for other in own(groups, rank)]))
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    inputs = draws((5,), dtype)
    wanted = torch.stack(inputs).any(0) if dtype is torch.bool else torch.stack(inputs).sum(0)
    assert all(torch.equal(result, wanted) for result in run(functional.all_reduce.default, inputs, "sum", name_of()))


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_gather_scatter_exchange(groups: list[list[int]]) -> None:
    inputs, size = draws((4, 3), torch.float32), len(groups[0])
    group = name_of(own(groups, RANK))
    gathered = run(functional.all_gather_into_tensor.default, inputs, size, group)
    scattered = run(functional.reduce_scatter_tensor.default, inputs, "sum", size, group)
    equal = [4 // size] * size
    exchanged = run(functional.all_to_all_single.default, inputs, equal, equal, group)
    for rank in range(WORLD):
        members = own(groups, rank)
        place = members.index(rank)
        assert torch.equal(gathered[rank], torch.cat([inputs[other] for other in members]))
        assert torch.equal(scattered[rank], torch.stack([inputs[other] for other in members]).sum(0).chunk(size)[place])
        assert torch.equal(exchanged[rank], torch.cat([inputs[other].chunk(size)[place] for other in members]))


def test_broadcast() -> None:
    inputs = draws((3,), torch.float32)
    assert all(torch.equal(result, inputs[2]) for result in run(functional.broadcast.default, inputs, 2, name_of()))


@pytest.mark.parametrize("shift", [1, 3])
def test_permutation_of_a_ring(shift: int) -> None:
    """As ``torch.distributed._functional_collectives.permute_tensor`` writes it."""
    inputs = draws((6,), torch.float32)
    sent, received = [0] * WORLD, [0] * WORLD
    sent[(RANK + shift) % WORLD] = received[(RANK - shift) % WORLD] = 6
    found = run(functional.all_to_all_single.default, inputs, received, sent, name_of())
    assert all(torch.equal(found[(rank + shift) % WORLD], inputs[rank]) for rank in range(WORLD))


def test_a_graph_of_collectives_and_arithmetic() -> None:
    """A row-parallel layer: a partial product each, summed; in place, waited for, and lists."""
    from torch.fx.experimental.proxy_tensor import make_fx

    group = name_of()

    def layer(x: torch.Tensor, w: torch.Tensor) -> Any:
        partial = functional.wait_tensor(functional.all_reduce((x @ w), "sum", group))
        doubled = functional.all_reduce_coalesced([x, w], "max", group)
        return partial.relu(), [functional.wait_tensor(value) for value in doubled]

    xs, ws = [torch.randn(2, 3) for _ in range(WORLD)], [torch.randn(3, 5) for _ in range(WORLD)]
    program = Program.from_graph(make_fx(layer)(xs[RANK], ws[RANK]), (xs[RANK], ws[RANK]))
    found = CompiledModule(lower(program).hlo(), WORLD).run_replicas([[x, w] for x, w in zip(xs, ws, strict=True)])
    wanted = torch.stack([x @ w for x, w in zip(xs, ws, strict=True)]).sum(0).relu()
    for result, largest, _ in found:
        torch.testing.assert_close(result, wanted)
        assert torch.equal(largest, torch.stack(xs).amax(0))


def test_groups_of_a_mesh() -> None:
    assert mesh_groups([4, 6], 8) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh_groups([3], 4) == ((0,), (1,), (2,), (3,))
    assert mesh_groups([0, 1, 3], 4) is None and mesh_groups([1, 2], 4) is None and mesh_groups([2, 0], 4) is None


def test_what_has_no_counterpart_is_refused() -> None:
    x = torch.ones(4)
    with pytest.raises(NotLowered, match=r"all_reduce .*ranks \[1, 2\] are no dimension of a mesh over 4"):
        lower(Program.from_call(functional.all_reduce.default, (x, "sum", name_of([1, 2]))))
    with pytest.raises(NotLowered, match='reduction "premul_sum"'):
        lower(Program.from_call(functional.all_reduce.default, (x, "premul_sum", name_of())))
    with pytest.raises(NotLowered, match="unequal size"):
        lower(Program.from_call(functional.all_to_all_single.default, (x, [1, 1, 1, 1], [0, 2, 1, 1], name_of())))

"""Every collective of ``torch.distributed`` on ``neuron``: values, dtypes, operators, forms, errors."""

from __future__ import annotations

import functools
import operator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.workers import Ranks

D = "neuron"
SIZES = (1, 1000, 50_003)  # inline; and more than 16 KiB, with parts that are not whole cache lines
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def data(rank: int, numel: int, dtype: torch.dtype, low: int = -3) -> torch.Tensor:
    """What ``rank`` puts in; small integers, so that sums are exact in every dtype. On the CPU."""
    generator = torch.Generator().manual_seed(100 * numel + rank)
    if not (dtype.is_floating_point or dtype.is_complex) and not dtype.is_signed:
        low = 0
    return torch.randint(low, 4, (numel,), generator=generator).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "neuron"
    assert actual.dtype == expected.dtype
    actual = actual.cpu()
    if actual.dtype in FLOAT8:
        actual, expected = actual.float(), expected.float()
    assert torch.equal(actual, expected), (actual, expected)


# ---- reductions ----


def expected_reduction(op: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    dtype = inputs[0].dtype
    wide = [x.to(torch.float32) if dtype in (torch.float16, torch.bfloat16) else x for x in inputs]
    if dtype in (torch.uint16, torch.uint32, torch.uint64):
        wide = [x.to(torch.int64) for x in inputs]
    functions = {
        "SUM": operator.add,
        "AVG": operator.add,
        "PRODUCT": operator.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": operator.and_,
        "BOR": operator.or_,
        "BXOR": operator.xor,
    }
    result = functools.reduce(functions[op], wide)
    if op == "AVG":
        whole = not (dtype.is_floating_point or dtype.is_complex)
        result = torch.div(result, len(inputs), rounding_mode="trunc") if whole else result / len(inputs)
    return result.to(dtype)


def check_all_reduce(dtypes: tuple[torch.dtype, ...], ops: tuple[str, ...]) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for dtype in dtypes:
        for op in ops:
            for numel in SIZES:
                inputs = [data(r, numel, dtype) for r in range(size)]
                tensor = inputs[rank].to(D)
                dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
                same(tensor, expected_reduction(op, inputs))


@pytest.mark.parametrize(
    "dtypes,ops",
    [
        (INTEGERS, ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")),
        (FLOATS, ("SUM", "AVG", "PRODUCT", "MIN", "MAX")),
        (COMPLEX, ("SUM",)),
    ],
    ids=["integers", "floats", "complex"],
)
def test_all_reduce(ranks4: Ranks, dtypes: tuple[torch.dtype, ...], ops: tuple[str, ...]) -> None:
    ranks4.run(check_all_reduce, dtypes, ops)


def check_booleans() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    inputs = [data(r, 100, torch.int32, 0) > 1 for r in range(size)]
    any_, all_ = functools.reduce(operator.or_, inputs), functools.reduce(operator.and_, inputs)
    for op, expected in {"SUM": any_, "MAX": any_, "BOR": any_, "PRODUCT": all_, "MIN": all_, "BAND": all_}.items():
        tensor = inputs[rank].to(D)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        same(tensor, expected)
    with pytest.raises(ValueError, match="AVG is not defined for Bool"):
        dist.all_reduce(inputs[rank].to(D), dist.ReduceOp.AVG)
    with pytest.raises(ValueError, match="BAND is not defined for Float"):
        dist.all_reduce(torch.ones(1, device=D), dist.ReduceOp.BAND)


def test_booleans_and_refused_operators(ranks4: Ranks) -> None:
    ranks4.run(check_booleans)


def check_order() -> list[bytes]:
    """float32 sums whose value depends on their order; the bits of the results."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for numel in (100, 100_000):
        inputs = [torch.randn(numel, generator=torch.Generator().manual_seed(r)) * 10.0 ** (3 * r) for r in range(size)]
        tensor = inputs[rank].to(D)
        dist.all_reduce(tensor)
        same(tensor, functools.reduce(operator.add, inputs))  # 0 + 1 + 2 + ...
        found.append(tensor.cpu().numpy().tobytes())
    return found


def test_sums_go_in_rank_order_and_are_the_same_bits_on_all_ranks(ranks4: Ranks) -> None:
    results = ranks4.run(check_order)
    assert all(result == results[0] for result in results)


def check_premul_sum() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for numel in SIZES:
        inputs = [data(r, numel, torch.float32) for r in range(size)]
        tensor = inputs[rank].to(D)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        same(tensor, functools.reduce(operator.add, [x * 0.5 for x in inputs]))


def test_premul_sum(ranks4: Ranks) -> None:
    ranks4.run(check_premul_sum)


def check_reduce_and_scatter() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for numel in SIZES:
        inputs = [data(r, numel * size, torch.float32) for r in range(size)]
        total = functools.reduce(operator.add, inputs)
        for root in range(size):
            tensor = inputs[rank].to(D)
            dist.reduce(tensor, root)
            if rank == root:
                same(tensor, total)
            else:
                same(tensor, inputs[rank])
        part = total.chunk(size)[rank]
        output = torch.empty(numel, device=D)
        dist.reduce_scatter_tensor(output, inputs[rank].to(D))
        same(output, part)
        dist.reduce_scatter(output.zero_(), list(inputs[rank].to(D).chunk(size)))
        same(output, part)
        dist.reduce_scatter_tensor(output, inputs[rank].to(D), dist.ReduceOp.AVG)
        same(output, part / size)
        whole = inputs[rank].to(D)  # in place
        dist.reduce_scatter_tensor(whole.chunk(size)[rank], whole)
        same(whole.chunk(size)[rank], part)
    # parts of different sizes
    parts = [[data(10 * r + part, 3 + part, torch.int64) for part in range(size)] for r in range(size)]
    output = torch.empty(3 + rank, dtype=torch.int64, device=D)
    dist.reduce_scatter(output, [x.to(D) for x in parts[rank]])
    same(output, functools.reduce(operator.add, [parts[r][rank] for r in range(size)]))


def test_reduce_and_reduce_scatter(ranks4: Ranks) -> None:
    ranks4.run(check_reduce_and_scatter)


# ---- moving ----


def check_moves(dtype: torch.dtype) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for numel in SIZES:
        mine = [data(r, numel, torch.int32).to(dtype) for r in range(size)]
        for root in (0, size - 1):
            tensor = mine[rank].to(D)
            dist.broadcast(tensor, root)
            same(tensor, mine[root])
        outputs = [torch.empty(numel, dtype=dtype, device=D) for _ in range(size)]
        dist.all_gather(outputs, mine[rank].to(D))
        for r in range(size):
            same(outputs[r], mine[r])
        flat = torch.empty(numel * size, dtype=dtype, device=D)
        dist.all_gather_into_tensor(flat, mine[rank].to(D))
        same(flat, torch.cat(mine))
        flat.view(torch.uint8).zero_()
        flat.chunk(size)[rank].copy_(mine[rank])
        dist.all_gather_into_tensor(flat, flat.chunk(size)[rank])  # in place
        same(flat, torch.cat(mine))
        root = size // 2
        outputs = [torch.empty(numel, dtype=dtype, device=D) for _ in range(size)]
        dist.gather(mine[rank].to(D), outputs if rank == root else None, root)
        if rank == root:
            for r in range(size):
                same(outputs[r], mine[r])
        output = torch.empty(numel, dtype=dtype, device=D)
        dist.scatter(output, [x.to(D) for x in mine] if rank == root else None, root)
        same(output, mine[rank])
        to_each = [[data(10 * r + to, numel, torch.int32).to(dtype) for to in range(size)] for r in range(size)]
        outputs = [torch.empty(numel, dtype=dtype, device=D) for _ in range(size)]
        dist.all_to_all(outputs, [x.to(D) for x in to_each[rank]])
        for r in range(size):
            same(outputs[r], to_each[r][rank])
        dist.all_to_all_single(flat, torch.cat(to_each[rank]).to(D))
        same(flat, torch.cat([to_each[r][rank] for r in range(size)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, *FLOAT8], ids=str)
def test_moves(ranks4: Ranks, dtype: torch.dtype) -> None:
    ranks4.run(check_moves, dtype)


def check_uneven(scale: int) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    # all_to_all_single with splits: rank r sends (r + to) * scale rows to each, among them none
    rows = [[(r + to) * scale for to in range(size)] for r in range(size)]
    sent = [data(r, 2 * sum(rows[r]), torch.float32).view(-1, 2) for r in range(size)]
    inputs, outputs = rows[rank], [rows[r][rank] for r in range(size)]
    output = torch.empty(sum(outputs), 2, device=D)
    dist.all_to_all_single(output, sent[rank].to(D), outputs, inputs)
    same(output, torch.cat([sent[r].split(rows[r])[rank] for r in range(size)]))
    # lists of different sizes
    lists = [list(x.split(rows[r])) for r, x in enumerate(sent)]
    received = [torch.empty(rows[r][rank], 2, device=D) for r in range(size)]
    dist.all_to_all(received, [x.to(D) for x in lists[rank]])
    for r in range(size):
        same(received[r], lists[r][rank])
    gathered = [torch.empty(sum(rows[r]), 2, device=D) for r in range(size)]
    dist.all_gather(gathered, sent[rank].to(D))
    for r in range(size):
        same(gathered[r], sent[r])


@pytest.mark.parametrize("scale", [1, 5000])
def test_uneven_sizes(ranks4: Ranks, scale: int) -> None:
    ranks4.run(check_uneven, scale)


def check_views() -> None:
    """Tensors that are not dense, or conjugated lazily: values as if they were."""
    size, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.zeros(6, 4, device=D)
    column = tensor[:, 1]
    column.fill_(rank + 1)
    work = dist.all_reduce(column, async_op=True)
    work.wait()
    expected = torch.zeros(6, 4)
    expected[:, 1] = size * (size + 1) / 2
    same(tensor, expected)
    wide = torch.zeros(3, 2 * size, device=D)
    dist.all_gather(list(wide.chunk(size, dim=1)), torch.full((3, 2), float(rank), device=D))
    same(wide, torch.arange(size).float().repeat_interleave(2).expand(3, -1))
    negated = torch.tensor([1 + 2j * rank], device=D).conj().imag  # a view that negates lazily
    assert negated.is_neg()
    outputs = [torch.empty(1, device=D) for _ in range(size)]
    dist.all_gather(outputs, negated)
    same(torch.cat(outputs), torch.tensor([-2.0 * r for r in range(size)]))


def test_views(ranks4: Ranks) -> None:
    ranks4.run(check_views)


def check_coalesced() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    tensors = [torch.full((n,), float(rank), device=D) for n in (1, 10, 40_000)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        same(tensor, torch.full_like(tensor.cpu(), sum(range(size))))
    with dist._coalescing_manager(device=torch.device(D, rank), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor.fill_(1))
    manager.wait()
    for tensor in tensors:
        same(tensor, torch.full_like(tensor.cpu(), size))
    inputs = [torch.full((n,), float(rank), device=D) for n in (3, 20_000)]
    outputs = [torch.empty(n * size, device=D) for n in (3, 20_000)]
    with dist._coalescing_manager(device=torch.device(D, rank)):
        for o, i in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(o, i)
    for output in outputs:
        same(output, torch.arange(size).float().repeat_interleave(output.numel() // size))
    with dist._coalescing_manager(device=torch.device(D, rank)):
        for o, i in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(i, o)
    for i in inputs:
        same(i, torch.full_like(i.cpu(), size * rank))
    # a list for each rank, in it an output for each input; the numbers of both differ
    sources = [torch.full((n,), 10.0 * rank + n, device=D) for n in (3, 20_000)] + [torch.full((2,), 1.0 * rank, device=D)]
    gathered = [[torch.empty_like(x) for x in sources] for _ in range(size)]
    dist.all_gather_coalesced(gathered, sources)
    for source, tensors in enumerate(gathered):
        for n, tensor in zip((3, 20_000), tensors, strict=False):
            same(tensor, torch.full((n,), 10.0 * source + n))
        same(tensors[-1], torch.full((2,), 1.0 * source))
    with pytest.raises(ValueError, match="a list of outputs per rank"):
        dist.all_gather_coalesced(gathered[:-1], sources)


def test_coalesced(ranks4: Ranks) -> None:
    ranks4.run(check_coalesced)


def check_sparse(dense: tuple[int, ...]) -> None:
    """Rank r has elements at 0..r, one of them twice."""
    size, rank = dist.get_world_size(), dist.get_rank()

    def of(rank: int) -> torch.Tensor:
        at = torch.arange(rank + 2).clamp(max=rank)
        return torch.sparse_coo_tensor(torch.stack([at, at * 2]), torch.full((rank + 2, *dense), rank + 1.0), (size, 2 * size, *dense))

    tensor = of(rank).to(D)
    dist.all_reduce(tensor)
    same(tensor.to_dense(), sum(of(r).to_dense() for r in range(size)))
    nothing = torch.sparse_coo_tensor(size=(size, 3, *dense)).to(D)  # type: ignore[call-arg]  # as documented; the stub has it not
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    with pytest.raises(ValueError, match=r"use ReduceOp\.SUM"):
        dist.all_reduce(of(rank).to(D), dist.ReduceOp.MAX)


@pytest.mark.parametrize("dense", [(), (3,)])
def test_sparse_sums(ranks4: Ranks, dense: tuple[int, ...]) -> None:
    ranks4.run(check_sparse, dense)


# ---- messages ----


def check_messages(numel: int) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    left, right = (rank - 1) % size, (rank + 1) % size
    # all send first: nothing waits for the order of the receives
    works: list[Any] = [dist.isend(data(rank, numel, torch.float32).to(D) + tag, right, tag=tag) for tag in (1, 2)]
    second, first = (torch.empty(numel, device=D) for _ in range(2))
    dist.recv(second, left, tag=2)
    dist.recv(first, left, tag=1)
    for work in works:
        work.wait()
    same(first, data(left, numel, torch.float32) + 1)
    same(second, data(left, numel, torch.float32) + 2)
    received = torch.empty(numel, device=D)
    ops = [dist.P2POp(dist.isend, first, right), dist.P2POp(dist.irecv, received, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(received, data((left - 1) % size, numel, torch.float32) + 1)
    # from whoever comes
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            source = dist.recv(received)
            same(received, torch.full((numel,), float(source)))
            sources.add(source)
        assert sources == set(range(1, size))
    else:
        dist.send(torch.full((numel,), float(rank), device=D), 0)
    # more messages than a mailbox holds
    if rank == 0:
        works = [dist.isend(torch.full((numel,), float(i), device=D), 1) for i in range(30)]
        for work in works:
            work.wait()
        torch.neuron.synchronize()
    if rank == 1:
        for i in range(30):
            dist.recv(received, 0)
            same(received, torch.full((numel,), float(i)))
    dist.barrier()


@pytest.mark.parametrize("numel", [10, 20_000])
def test_messages(ranks4: Ranks, numel: int) -> None:
    ranks4.run(check_messages, numel)


# ---- groups, objects, work ----


def check_order_of_messages(numel: int) -> None:
    """Receives that wait already when messages of one tag arrive take them in order, and so do messages that wait for room."""
    rank, count = dist.get_rank(), 24
    peer = rank ^ 1
    for _ in range(40):
        buffers = [torch.zeros(numel, device=D) for _ in range(count)]
        works: list[Any] = [dist.irecv(buffer, peer) for buffer in buffers]
        works += [dist.isend(torch.full((numel,), float(i), device=D), peer) for i in range(count)]
        for work in works:
            work.wait()
        assert [buffer[-1].item() for buffer in buffers] == list(range(count))


@pytest.mark.parametrize("numel", [10, 20_000])
def test_order_of_messages(ranks4: Ranks, numel: int) -> None:
    ranks4.run(check_order_of_messages, numel)


def check_groups() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    assert dist.get_backend_config() and "neuron:neuron" in dist.get_backend_config()
    evens, odds = dist.new_group(range(0, size, 2)), dist.new_group(range(1, size, 2))
    mine = odds if rank % 2 else evens
    tensor = torch.tensor([rank], device=D)
    dist.all_reduce(tensor, group=mine)
    same(tensor, torch.tensor([sum(range(rank % 2, size, 2))]))
    everyone = torch.tensor([rank], device=D)
    dist.all_reduce(everyone)
    same(everyone, torch.tensor([sum(range(size))]))
    for group in (evens, odds):
        if rank in dist.get_process_group_ranks(group):
            dist.destroy_process_group(group)


def test_groups(ranks4: Ranks) -> None:
    ranks4.run(check_groups)


def check_objects() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (rank * 50_000)})
    assert [x["rank"] for x in gathered] == list(range(size))  # type: ignore[index]
    objects = [rank, "a"] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, 1)
    assert objects == [1, "a"]
    to_root: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, to_root, 0)
    assert rank or to_root == list(range(size))
    mine: list[object] = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["hello", 5], 1)
    elif rank == 1:
        received: list[object] = [None, None]
        dist.recv_object_list(received, 0)
        assert received == ["hello", 5]
    dist.barrier()


def test_objects(ranks4: Ranks) -> None:
    ranks4.run(check_objects)


def check_work() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    side = torch.neuron.Stream()
    tensor = torch.full((100_000,), 1.0, device=D)
    for _ in range(20):
        tensor += 1
    side.wait_stream(torch.neuron.current_stream())
    with torch.neuron.stream(side):
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        tensor *= 2
    torch.neuron.current_stream().wait_stream(side)
    result = tensor + 1
    same(result, torch.full((100_000,), 21.0 * size * 2 + 1))
    assert work.is_completed() and work.is_success()
    # futures, and functions that run after them in stream order
    tensor = torch.full((50_000,), float(rank), device=D)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] / size)
    same(future.wait(), torch.full((50_000,), sum(range(size)) / size))
    # the host does not wait: rank 0 comes only when the others have gone on
    tensor.fill_(1)
    tensor * 2  # the first call of a kind waits for the stream
    torch.neuron.synchronize()
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    went_on = [f"check_work {other}" for other in range(1, size)]
    if rank == 0:
        store.wait(went_on, timedelta(seconds=100))
    work = dist.all_reduce(tensor.fill_(1), async_op=True)
    work.wait()
    doubled = tensor * 2
    if rank > 0:
        store.set(went_on[rank - 1], "")
    assert work.is_completed()  # its results can be used on this stream
    same(doubled, torch.full((50_000,), 2.0 * size))


def test_work_streams_and_futures(ranks4: Ranks) -> None:
    ranks4.run(check_work)


def check_functional() -> None:
    import torch.distributed._functional_collectives as fc

    size, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    tensor = torch.full((4, 3), float(rank), device=D)
    same(fc.all_reduce(tensor, "sum", group) + 0, torch.full((4, 3), float(sum(range(size)))))
    same(fc.all_gather_tensor(tensor, 0, group) + 0, torch.arange(size).float().repeat_interleave(4)[:, None].expand(-1, 3))
    same(fc.reduce_scatter_tensor(tensor, "avg", 0, group) + 0, torch.full((4 // size, 3), sum(range(size)) / size))
    exchanged = torch.arange(size).float().repeat_interleave(4 // size)
    same(fc.all_to_all_single(tensor, None, None, group) + 0, exchanged[:, None].expand(-1, 3))
    same(fc.broadcast(tensor, 1, group) + 0, torch.ones(4, 3))


def test_functional_collectives(ranks4: Ranks) -> None:
    ranks4.run(check_functional)


def check_bad_input() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4, device=D)
    with pytest.raises(ValueError, match="world_size times input"):
        dist.all_gather_into_tensor(torch.ones(5, device=D), x)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        dist.all_gather([x] * (size + 1), x)
    with pytest.raises((TypeError, ValueError), match="same type"):
        dist.all_gather_into_tensor(torch.ones(4 * size, dtype=torch.int32, device=D), x)
    with pytest.raises((RuntimeError, ValueError), match="rank"):
        dist.send(x, rank)


def test_bad_input(ranks4: Ranks) -> None:
    ranks4.run(check_bad_input)


def test_two_ranks(ranks2: Ranks) -> None:
    ranks2.run(check_all_reduce, (torch.float32,), ("SUM",))
    ranks2.run(check_moves, torch.float32)
    ranks2.run(check_messages, 20_000)

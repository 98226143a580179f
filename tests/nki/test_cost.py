"""Cycles per instruction: every opcode has a cost, and the formulas are the published ones."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import pytest
import torch

from torch_neuronx.nki import cost, cost_dma
from torch_neuronx.nki.cost_parameters import PARAMETERS, CostParameters
from torch_neuronx.nki.instruction import Instruction, flatten
from torch_neuronx.nki.opcode import OPCODES
from torch_neuronx.nki.target import TARGETS, target


def instructions(body: Any, on: str) -> list[Instruction]:
    """What ``body(source)`` records, with ``source`` a ``[128, 512]`` float32 tensor in HBM."""

    @nki.jit
    def kernel(source: Any) -> Any:
        out = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        body(source)
        done = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=done, value=0.0)
        nisa.dma_copy(dst=out, src=done)
        return out

    traced = kernel.trace(torch.empty(128, 512, device="meta"), target=on)
    return list(flatten(traced.instructions[0]))


def busy(found: list[Instruction], opcode: str, on: str) -> float:
    """Cycles of the last instruction of that opcode, but for the ones the harness adds."""
    return cost.cycles(next(i for i in reversed(found) if i.opcode == opcode), target(on)).busy


def tile(columns: int, dtype: Any, buffer: Any = nl.sbuf, partitions: int = 128) -> Any:
    made = nl.ndarray((partitions, columns), dtype=dtype, buffer=buffer)
    if buffer == nl.sbuf:
        nisa.memset(dst=made, value=0.0)
    return made


def test_every_opcode_has_a_cost() -> None:
    missing = [name for name, row in OPCODES.items() if row.cost is None]
    assert missing == []
    assert set(cost.COSTS) == set(OPCODES)


@pytest.mark.parametrize("on", TARGETS)
@pytest.mark.parametrize(
    ("columns", "dtype", "cycles"),
    [
        (16, nl.float32, {"trn1": 64, "trn2": 64, "trn3": 64}),  # the least interval between two instructions
        (512, nl.float32, {"trn1": 512, "trn2": 256, "trn3": 256}),  # 256 elements per cycle from trn2 on
        (512, nl.bfloat16, {"trn1": 512, "trn2": 128, "trn3": 128}),  # 512 elements per cycle
    ],
)
def test_copy_on_the_vector_engine(columns: int, dtype: Any, cycles: dict[str, int], on: str) -> None:
    def body(source: Any) -> None:
        nisa.tensor_copy(dst=nl.ndarray((128, columns), dtype=dtype, buffer=nl.sbuf), src=tile(columns, dtype), engine=nisa.engine.vector)

    assert busy(instructions(body, on), "tensor_copy", on) == cycles[on]


@pytest.mark.parametrize(
    ("dtype", "op", "on", "cycles"),
    [
        (nl.float32, nl.add, "trn1", 1024),  # two inputs in SBUF: 2 N
        (nl.bfloat16, nl.add, "trn1", 512),  # simple arithmetic on bf16: N
        (nl.bfloat16, nl.maximum, "trn1", 1024),
        (nl.bfloat16, nl.maximum, "trn2", 512),  # twice as fast with all in 16 bits
        (nl.bfloat16, nl.add, "trn2", 256),
        (nl.float32, nl.add, "trn2", 1024),
    ],
)
def test_two_inputs(dtype: Any, op: Any, on: str, cycles: int) -> None:
    def body(source: Any) -> None:
        a, b = tile(512, dtype), tile(512, dtype)
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=op, engine=nisa.engine.vector)

    assert busy(instructions(body, on), "tensor_tensor", on) == cycles


def test_two_memories_halve_a_two_input_instruction() -> None:
    def body(source: Any) -> None:
        a, weights = tile(512, nl.float32), tile(128, nl.float32)
        product = tile(512, nl.float32, nl.psum)
        nisa.nc_matmul(dst=product, stationary=weights, moving=a)
        nisa.tensor_tensor(dst=a, data1=product, data2=a, op=nl.add)

    assert busy(instructions(body, "trn2"), "tensor_tensor", "trn2") == 512


@pytest.mark.parametrize(
    ("dtype", "columns", "cycles"),
    [(nl.bfloat16, 512, 512), (nl.float32, 512, 2048), (nl.bfloat16, 1, 64)],  # fp32 takes four passes
)
def test_matmul(dtype: Any, columns: int, cycles: int) -> None:
    def body(source: Any) -> None:
        product = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=tile(128, dtype), moving=tile(columns, dtype))

    found = instructions(body, "trn2")
    assert busy(found, "nc_matmul", "trn2") == cycles
    assert cost.operations(next(i for i in found if i.opcode == "nc_matmul")) == 2 * 128 * 128 * columns


def test_double_row_contracts_256_in_the_time_of_128() -> None:
    def body(source: Any) -> None:
        a = nl.ndarray((128, 2, 128), dtype=nl.float8_e5m2, buffer=nl.sbuf)
        b = nl.ndarray((128, 2, 512), dtype=nl.float8_e5m2, buffer=nl.sbuf)
        nisa.memset(dst=a, value=0.0)
        nisa.memset(dst=b, value=0.0)
        product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=a, moving=b, perf_mode=nisa.matmul_perf_mode.double_row)

    found = instructions(body, "trn2")
    assert busy(found, "nc_matmul", "trn2") == 512
    assert cost.operations(next(i for i in found if i.opcode == "nc_matmul")) == 2 * 256 * 128 * 512


def test_activation_pays_for_reading_its_sum() -> None:
    def body(source: Any) -> None:
        a, total = tile(512, nl.float32), nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=a, op=nl.exp, data=a)
        nisa.activation_reduce(dst=a, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=total)

    found = instructions(body, "trn2")
    assert busy(found, "activation", "trn2") == 512
    assert busy(found, "activation_reduce", "trn2") == 576


def test_a_long_stride_halves_the_bandwidth() -> None:
    def body(source: Any) -> None:
        wide = tile(2048, nl.float32)
        nisa.activation(dst=tile(512, nl.float32), op=nl.exp, data=wide[:, 0:2048:4])

    assert busy(instructions(body, "trn2"), "activation", "trn2") == 1024


@pytest.mark.parametrize(("partitions", "engines"), [(128, 16), (16, 2), (4, 1)])
def test_a_dma_spreads_over_one_engine_per_eight_partitions(partitions: int, engines: int) -> None:
    def body(source: Any) -> None:
        nisa.dma_copy(dst=nl.ndarray((partitions, 512), dtype=nl.float32, buffer=nl.sbuf), src=source[0:partitions, :])

    first = next(i for i in instructions(body, "trn2") if i.opcode == "dma_copy")
    move = cost_dma.transfer(first, target("trn2"))
    assert (move.engines, move.rows, move.run) == (engines, partitions, 2048)
    assert move.hbm_bytes == partitions * 2048
    assert move.engine_ns == pytest.approx(partitions / engines * (2048 / 23 + 6), rel=0.15)


def test_short_rows_cost_a_dma_engine_as_much_as_longer_ones() -> None:
    parameters = PARAMETERS["trn2"]
    assert cost_dma.row_ns(64, parameters) == cost_dma.row_ns(1024, parameters) == parameters.dma_row_floor_ns
    assert cost_dma.row_ns(8192, parameters) > 3 * parameters.dma_row_floor_ns


def test_every_parameter_says_where_it_comes_from() -> None:
    assert {basis for _, basis, _ in CostParameters.describe()} <= {"documented", "fitted", "assumed"}
    assert set(PARAMETERS) == set(TARGETS)


def test_an_unknown_opcode_is_an_error() -> None:
    unknown = Instruction(0, "no_such_opcode", nisa.engine.vector, {}, (), (), {}, None)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no_such_opcode"):
        cost.cycles(unknown, target("trn2"))

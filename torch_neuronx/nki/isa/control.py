"""Sequencers and cores: registers, barriers, exchange between the two cores of a launch, queries of the target."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.nki import numerics, trace
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.instruction import Instruction, Register
from torch_neuronx.nki.isa.constants import dma_engine, engine, nc_version
from torch_neuronx.nki.limits import enum_member, in_sbuf, same_dtype
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Rendezvous, Step
from torch_neuronx.nki.target import current_target
from torch_neuronx.nki.tensor import NkiTensor

_GPSIMD_BYTES = 1024  # of 32-bit types per partition


def get_nc_version() -> nc_version:
    """The NeuronCore generation that the kernel is traced for."""
    tracer = trace.active()
    return nc_version((tracer.target if tracer is not None else current_target()).generation)


def get_nc_sub_version() -> int:
    """The silicon revision; the emulation is of the first."""
    return 0


# Registers.


def register_alloc(x: int | None = None) -> Register:
    """A new register; ``x`` is its first value."""
    register = trace.current("nki.isa.register_alloc").register()
    if x is not None:
        register_move(register, x)
    return register


def _writes_register(call: Call) -> None:
    dst = call["dst"]
    if not isinstance(dst, Register):
        call.fail(f"dst must be a register, got {type(dst).__name__}", TypeError)
    if dst.frozen:
        call.fail("writes the counter of a dynamic loop, which is frozen")
    call.registers[1].append(dst)


def _reads_register(call: Call) -> None:
    src = call["src"]
    if isinstance(src, Register):
        call.registers[0].append(src)
    elif isinstance(src, bool) or not isinstance(src, int):
        call.fail(f"src must be an int or a register, got {type(src).__name__}", TypeError)


@opcode("sync", writes="", limits=[_writes_register, _reads_register])
def register_move(dst: Register, src: Any, name: str | None = None) -> None:
    """``dst = src``: an int or a register."""


@register_move.semantics
def _(i: Instruction, bind: Binder) -> Step:
    registers, dst, value = bind.registers, i.attrs["dst"], bind.number(i.attrs["src"])
    return lambda: registers.__setitem__(dst, value())


def _one_element(name: str) -> Any:
    def check(call: Call) -> None:
        access = call[name]
        if not isinstance(access, AccessPattern) or access.size != 1:
            call.fail(f"{name} must be a tensor of one element, got {getattr(access, 'shape', access)}")

    return check


@opcode("sync", writes="", reads="src", limits=[_writes_register, _one_element("src")])
def register_load(dst: Register, src: NkiTensor, name: str | None = None) -> None:
    """``dst`` = the one element of a tensor in HBM or SBUF."""


@register_load.semantics
def _(i: Instruction, bind: Binder) -> Step:
    registers, dst, value = bind.registers, i.attrs["dst"], bind.number(i.operands["src"])
    return lambda: registers.__setitem__(dst, value())


@opcode("sync", limits=[_reads_register, _one_element("dst")])
def register_store(dst: NkiTensor, src: Register, name: str | None = None) -> None:
    """The one element of a tensor = ``src``."""


@register_store.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, value = i.operands["dst"], bind.number(i.attrs["src"])
    assert isinstance(dst, AccessPattern)
    put, store, integer, dtype = bind.raw_store(dst, (1,)), bind.store(dst, (1,)), dst.dtype.is_integer, dst.dtype
    if integer:
        return lambda: put(numerics.from_bits(torch.tensor([value()]), dtype))
    return lambda: store(torch.tensor([float(value())], dtype=torch.float32))


# Cores.


def _both_cores(call: Call) -> None:
    if tuple(call["cores"]) != (0, 1):
        call.fail(f"cores must be (0, 1), got {call['cores']}")


@opcode("gpsimd vector scalar tensor sync", writes="", reads="data", since="trn2", limits=[_both_cores])
def core_barrier(data: NkiTensor, cores: Any, engine: Any = engine.gpsimd, name: str | None = None) -> None:
    """Both cores of the launch wait for each other here; ``data`` (in shared HBM) is what the barrier makes visible."""


@core_barrier.semantics
def _(i: Instruction, bind: Binder) -> Any:
    return Rendezvous(i, bind, lambda waiting: None)


def _exchange_rules(call: Call) -> None:
    src, dst = call.access("src"), call.access("dst")
    if src.shape != dst.shape:
        call.fail(f"needs equal shapes, got src {src.shape} and dst {dst.shape}")
    for name in ("send_to_rank", "recv_from_rank"):
        if isinstance(call[name], int) and call[name] not in (0, 1):
            call.fail(f"{name} is core 0 or 1, got {call[name]}")
    if call["dma_engine"] is dma_engine.gpsimd_dma:
        limit = _GPSIMD_BYTES * src.itemsize // 4
        if src.free_bytes > limit:
            call.fail(f"with gpsimd_dma moves at most {limit} bytes per partition of {src.dtype}, got {src.free_bytes}")


@opcode(
    "dma gpsimd",
    reads="src",
    since="trn2",
    limits=[in_sbuf("src", "dst"), same_dtype("src", "dst"), enum_member("dma_engine", dma_engine), _exchange_rules],
)
def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: dma_engine = dma_engine.dma,
    name: str | None = None,
) -> None:
    """Sends ``src`` to the other core and receives its ``src`` into ``dst``."""


@sendrecv.semantics
def _(i: Instruction, bind: Binder) -> Any:
    return Rendezvous(i, bind, _exchange)


def _exchange(waiting: list[Rendezvous]) -> None:
    """All sources are read before any destination is written."""
    by_core = {meeting.binder.core: meeting for meeting in waiting}
    sent = {core: _raw(meeting, "src")().clone() for core, meeting in by_core.items()}
    for meeting in waiting:
        sender = int(meeting.instruction.attrs["recv_from_rank"])
        if sender not in sent:
            raise NkiValidationError(f"{meeting.instruction.line}: sendrecv waits for core {sender}, which takes no part in this launch")
        dst = meeting.instruction.operands["dst"]
        assert isinstance(dst, AccessPattern)
        meeting.binder.raw_store(dst)(sent[sender])


def _raw(meeting: Rendezvous, name: str) -> Any:
    access = meeting.instruction.operands[name]
    assert isinstance(access, AccessPattern)
    return meeting.binder.raw(access)

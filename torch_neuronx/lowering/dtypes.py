"""PyTorch dtypes in JAX, and what each Trainium generation makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from torch_neuronx.lowering.table import NotLowered

# torch dtype -> name of the JAX (numpy, ml_dtypes) dtype.
NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.float8_e8m0fnu: "float8_e8m0fnu",
}
_BACK = {name: dtype for dtype, name in NAMES.items()}

# dtype in which PyTorch computes on the CPU what it stores in a narrow one.
_OPMATH = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def to_jax(dtype: torch.dtype) -> Any:
    """The numpy dtype object. NotLowered: JAX has no such dtype."""
    import jax.numpy as jnp

    try:
        return jnp.dtype(NAMES[dtype])
    except KeyError:
        raise NotLowered("a tensor", f"{dtype} has no counterpart in StableHLO") from None


def to_torch(dtype: Any) -> torch.dtype:
    """The inverse of :func:`to_jax`."""
    return _BACK[str(dtype)]


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype that PyTorch's kernels compute in for results of ``dtype``."""
    return _OPMATH.get(dtype, dtype)


@dataclass(frozen=True)
class Rule:
    """What a chip does with a dtype: ``native``, ``changed`` (computed as ``instead``), or ``refused``; ``note`` says it to people."""

    verdict: str
    instead: str | None = None
    note: str = ""


_NATIVE = Rule("native")
_COMPLEX = Rule("changed", "pairs of float32", "complex64 is computed as pairs of float32: the chip has no complex numbers (NCC_EVRF004)")
_COMPLEX_DOUBLE = Rule("refused", note="complex128 would be pairs of float64, and the chip has neither (NCC_EVRF004)")
_FNUZ = Rule("refused", note="the compiler refuses FNUZ formats (NCC_EVRF005)")
_DOUBLE = Rule("changed", "float32", "float64 is computed as float32")
_INT64 = Rule("changed", "int32", "int64 is computed as int32 unless neuronx-cc gets --native-int64=enabled")
_INT64_TRN1 = Rule("changed", "int32", "int64 is computed as int32")

# dtype -> what each generation does. Sources: neuronx-cc's documentation (SDK 2.32) of --native-int64 and of its NCC_* errors.
GENERATIONS: dict[str, dict[torch.dtype, Rule]] = {
    generation: {
        **dict.fromkeys(NAMES, _NATIVE),
        torch.float64: _DOUBLE,
        torch.complex64: _COMPLEX,
        torch.complex128: _COMPLEX_DOUBLE,
        torch.float8_e4m3fnuz: _FNUZ,
        torch.float8_e5m2fnuz: _FNUZ,
        torch.int64: _INT64_TRN1 if generation == "trn1" else _INT64,
        torch.uint64: _INT64_TRN1 if generation == "trn1" else _INT64,
    }
    for generation in ("trn1", "trn2", "trn3")
}
for _generation in ("trn1", "trn2"):
    GENERATIONS[_generation][torch.float8_e4m3fn] = Rule(
        "refused",
        note="this chip's e4m3 ends at 240 (NCC_EVRF051): convert with torch.neuron.to_float8_e4m3_trn2 and keep the bits",
    )
    GENERATIONS[_generation][torch.float8_e8m0fnu] = Rule("refused", note="MX scales exist from Trainium3 on")


# HLO's names of what no generation has, or only in another precision: a module with one of them is not for the chip.
_ABSENT = {
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "f8e4m3fnuz": torch.float8_e4m3fnuz,
    "f8e5m2fnuz": torch.float8_e5m2fnuz,
}
_ABSENT_IN_TEXT = re.compile(rf" = \(?(?:{'|'.join(_ABSENT)})\[.*")
_HLO_TYPE = re.compile(r" = \(?(\w+)\[")


def absent_from_chip(text: str, generation: str) -> str | None:
    """Why no NeuronCore runs a module, from its HLO text: the first instruction whose dtype it lacks; None when there is none."""
    line = _ABSENT_IN_TEXT.search(text)
    if line is None:
        return None
    kind = _HLO_TYPE.match(line[0])
    assert kind is not None
    dtype = _ABSENT[kind[1]]
    from_op = re.search(r"\w+::[\w.]+", line[0])
    found = rule(dtype, generation)
    note = "the chip has no float64" if dtype == torch.float64 else found.note
    return f"{note}, and {from_op[0] if from_op else 'an argument'} is {dtype}"


def rule(dtype: torch.dtype, generation: str) -> Rule:
    """What Trainium ``generation`` ("trn1", "trn2", "trn3") does with ``dtype``."""
    return GENERATIONS[generation].get(dtype, Rule("refused", note=f"{dtype} has no counterpart on the chip"))

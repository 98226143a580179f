"""What the documented compiler refuses, as a scan over HLO text: each rule gives NCC code and message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# What the compiler (SDK 2.32) recognises; anything else is NCC_EVRF015.
KNOWN = frozenset(
    """
    AwsNeuronErf AwsNeuronGelu AwsNeuronGeluApprxTanh AwsNeuronGeluBackward AwsNeuronSilu AwsNeuronSiluBackward AwsNeuronRmsNorm
    AwsNeuronSoftmax AwsNeuronSoftmaxBackward AwsNeuronCollectiveMatmul AwsNeuronIntMatmult AwsNeuronArgMax AwsNeuronArgMin AwsNeuronTopK
    AwsNeuronDropoutMaskV1 AwsNeuronCustomNativeKernel AwsNeuronCustomOp AwsNeuronDevicePrint ResizeNearest ResizeBilinear
    ResizeNearestGrad AwsNeuronLNCShardingConstraint AwsNeuronTransferWithStaticRing AwsNeuronModuleMarkerStart-Forward
    AwsNeuronModuleMarkerStart-Backward AwsNeuronModuleMarkerEnd-Forward AwsNeuronModuleMarkerEnd-Backward NeuronBoundaryMarker-Start
    NeuronBoundaryMarker-End QuantizeMX __op$block_scaled_dot
    """.split()
)

_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\([^)]*\)|[\w\[\],<=?]+(?:\{[^}]*\})?) (?P<opcode>[\w\-]+)\((?P<rest>.*)$"
)


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    opcode: str
    rest: str  # operands and attributes


@dataclass(frozen=True)
class Context:
    """What the command line says."""

    target: str
    downcasts: frozenset[str]  # of dot, scatter, all_reduce, reduce_scatter, pow
    fp8_as_trn2: bool = False


def instructions(text: str) -> Iterator[Instruction]:
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match:
            yield Instruction(match["name"], match["shape"], match["opcode"], match["rest"])


def _has(shape: str, *types: str) -> bool:
    return any(re.search(rf"\b{kind}\[", shape) for kind in types)


def _dynamic(i: Instruction, c: Context) -> str | None:
    if "<=" in i.shape or "?" in i.shape:
        return f"Dynamic shape is not supported: instruction '{i.name}' has shape '{i.shape}'."
    return None


def _custom_call(i: Instruction, c: Context) -> str | None:
    target = re.search(r'custom_call_target="([^"]*)"', i.rest)
    if i.opcode == "custom-call" and (target is None or target[1] not in KNOWN):
        return f"custom-call target '{target[1] if target else ''}' of instruction '{i.name}' is not recognized"
    return None


def _operand_types(i: Instruction) -> str:
    return i.rest.split("metadata=")[0]


def _integers(shape: str) -> bool:
    return _has(shape, "s32", "s64", "u32", "u64")


def _window(i: Instruction, attribute: str) -> list[int]:
    found = re.search(rf"{attribute}=([\dx]+)", i.rest)
    return [int(size) for size in found[1].split("x")] if found else []


_UNSUPPORTED = frozenset("fft cholesky triangular-solve infeed outfeed send recv dynamic-reshape set-dimension-size rng".split())

_Rule = Callable[[Instruction, Context], "str | None"]


def _when(test: Callable[[Instruction, Context], bool], message: str) -> _Rule:
    return lambda i, c: message.format(name=i.name, shape=i.shape, opcode=i.opcode) if test(i, c) else None


RULES: list[tuple[str, _Rule]] = [
    ("EMOD025", _dynamic),
    ("EVRF015", _custom_call),
    ("EVRF004", _when(lambda i, c: _has(i.shape, "c64", "c128"), "complex type {shape} of instruction '{name}' is not supported")),
    ("EVRF005", _when(lambda i, c: _has(i.shape, "f8e4m3fnuz", "f8e4m3b11fnuz", "f8e5m2fnuz"), "type {shape} of instruction '{name}'")),
    (
        "EVRF051",
        _when(
            lambda i, c: _has(i.shape, "f8e4m3fn") and c.target in ("trn1", "trn1n", "inf2", "trn2") and not c.fp8_as_trn2,
            "F8E4M3FN of instruction '{name}' is not supported on this target",
        ),
    ),
    (
        "ESPP004",
        _when(lambda i, c: _has(i.shape, "f64"), "data type of instruction '{name}' ({shape}) is not supported for code generation"),
    ),
    ("EVRF001", _when(lambda i, c: i.opcode in _UNSUPPORTED, "operator {opcode} of instruction '{name}' is not supported")),
    (
        "EVRF006",
        _when(lambda i, c: i.opcode == "rng-bit-generator" and "algorithm=rng_default" not in i.rest, "instruction '{name}': algorithm"),
    ),
    (
        "EVRF010",
        _when(
            lambda i, c: i.opcode == "convolution" and "lhs_dilate=" in i.rest and "rhs_dilate=" in i.rest,
            "instruction '{name}' dilates input and kernel",
        ),
    ),
    (
        "EVRF011",
        _when(
            lambda i, c: i.opcode == "convolution" and "lhs_dilate=" in i.rest and any(s > 1 for s in _window(i, "stride")),
            "instruction '{name}' has a stride and dilates its input",
        ),
    ),
    ("EVRF017", _when(lambda i, c: i.opcode == "reduce-window" and "lhs_dilate=" in i.rest, "instruction '{name}': base dilation")),
    ("EVRF018", _when(lambda i, c: i.opcode == "reduce-window" and "rhs_dilate=" in i.rest, "instruction '{name}': window dilation")),
    (
        "EVRF022",
        _when(
            lambda i, c: i.opcode == "shift-right-arithmetic" and not _has(i.shape, "s32"),
            "arithmetic shift of instruction '{name}' on {shape}",
        ),
    ),
    (
        "EVRF035",
        _when(lambda i, c: i.opcode == "dot" and _integers(i.shape) and "dot" not in c.downcasts, "integer dot, instruction '{name}'"),
    ),
    (
        "EVRF060",
        _when(
            lambda i, c: i.opcode == "scatter" and _integers(i.shape) and "scatter" not in c.downcasts,
            "integer scatter, instruction '{name}'",
        ),
    ),
    (
        "EVRF013",
        _when(lambda i, c: "AwsNeuronTopK" in i.rest and _has(_operand_types(i), "s32", "s64"), "TopK on integers, instruction '{name}'"),
    ),
]


def refusals(text: str, context: Context) -> list[tuple[str, str]]:
    """(code, message) of everything that the compiler refuses in HLO ``text``."""
    found = []
    for instruction in instructions(text):
        for code, rule in RULES:
            message = rule(instruction, context)
            if message is not None:
                found.append((code, message))
    return found

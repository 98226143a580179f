"""What goes wrong in a compilation, as exceptions that say it. The compiler's codes are those of its documentation (SDK 2.32)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Code -> what a user can do about it. The compiler's own line says what happened.
REMEDIES = {
    "EARG001": "set NEURON_LOGICAL_NC_CONFIG to a value that the target has",
    "EARG002": "remove the argument from NEURON_CC_FLAGS",
    "EBIR023": "use an MLP whose intermediate size is at most 4096, or no fused kernel for it",
    "EBVF030": "split the model, or lower the sequence length or batch: the program has too many instructions",
    "EVRF007": "split the model, or lower the sequence length or batch: the program has too many instructions",
    "EXTP004": "split the model, or lower the sequence length or batch: the program has too many instructions",
    "EHCA005": "the custom call is not one that this compiler knows; update neuronx-cc",
    "EVRF015": "the custom call is not one that this compiler knows; update neuronx-cc",
    "EMOD025": "compile for fixed shapes: torch.compile(dynamic=False), or pad to buckets",
    "EOOM001": "less memory on the device: smaller batch, checkpointing, or more cores",
    "EOOM002": "less memory on the device: smaller batch, checkpointing, or more cores",
    "EVRF009": "less memory on the device: smaller batch, checkpointing, or more cores",
    "EXSP001": "less memory on the device: smaller batch, checkpointing, or more cores",
    "ESFH002": "keep unsigned 64-bit constants below 2^32",
    "ESPP004": "convert to a dtype that the chip has (float32, bfloat16, float16, int32)",
    "ESPP047": "use float8_e4m3fn (Trainium3), float8_e5m2, or Trainium2's e4m3",
    "EUOC002": "the operator has no implementation on the chip; run it on the host",
    "EVRF001": "the operator has no implementation on the chip; run it on the host",
    "EVRF004": "split complex numbers into real and imaginary parts",
    "EVRF005": "use float8_e4m3fn (Trainium3), float8_e5m2, or Trainium2's e4m3",
    "EVRF006": "the generator must be RNG_DEFAULT",
    "EVRF010": "a convolution cannot dilate its input and its kernel at once",
    "EVRF011": "a strided convolution cannot dilate its input",
    "EVRF013": "convert to float32 before topk",
    "EVRF016": "convert to float32 before scatter_reduce",
    "EVRF017": "pooling cannot have a base dilation",
    "EVRF018": "pooling cannot have a dilation",
    "EVRF019": "the reduce-window has an operand count that the chip lacks",
    "EVRF022": "shift 32-bit integers",
    "EVRF035": "convert to float32 before the product, or pass --implicit-integer-downcast=dot",
    "EVRF051": "convert with torch.neuron.to_float8_e4m3_trn2, or compile for Trainium3",
    "EVRF052": "use float8_e4m3fn",
    "EVRF059": "the NKI kernel's file is gone; trace the kernel again",
    "EVRF060": "convert to float32 before the scatter",
    "EVRF061": "convert to float32 before the all-reduce",
    "EVRF062": "use 32-bit operands",
    "EVRF063": "convert to float32 before the reduce-scatter",
    "EVRF064": "the module is malformed; please report it",
    "EVRF065": "trace the NKI kernel again with this SDK",
}
OUT_OF_MEMORY = frozenset({"EOOM001", "EOOM002", "EVRF009", "EXSP001"})

_LINE = re.compile(r"\[?NCC_(?P<code>[A-Z]{4}\d{3})\]?:?\s*(?P<text>.*)")
_INSTRUCTION = re.compile(r"(?:instruction|op|operation)\s+'?%?(?P<name>[\w.\-]+)'?", re.IGNORECASE)


class CompilerError(RuntimeError):
    """neuronx-cc failed.

    ``code``: the NCC code without its prefix, or None; ``op``: the ATen overload; ``line``: Python file and line; ``log``: its output.
    """

    def __init__(self, message: str, code: str | None = None, op: str | None = None, line: str | None = None, log: str = "") -> None:
        super().__init__(message)
        self.code, self.op, self.line, self.log = code, op, line, log


class CompilerNotFound(CompilerError):
    """There is no neuronx-cc on this machine."""


class CompilerTimeout(CompilerError):
    """neuronx-cc did not finish in time."""


@dataclass(frozen=True)
class Finding:
    """One NCC line of the compiler's output."""

    code: str
    text: str
    instruction: str | None


def findings(output: str) -> list[Finding]:
    """The NCC errors in ``output``, in order, each once."""
    found = []
    for line in output.splitlines():
        match = _LINE.search(line)
        if match:
            name = _INSTRUCTION.search(match["text"])
            found.append(Finding(match["code"], match["text"].strip(), name["name"] if name else None))
    return list(dict.fromkeys(found))


def error_of(
    output: str, status: int, module: str, metadata: dict[str, str] | None = None, lines: Sequence[str | None] = ()
) -> CompilerError:
    """The exception for a failed run.

    Args:
        output: what neuronx-cc wrote.
        module: name of the program, for the message.
        metadata: HLO instruction -> its op_name, which holds the ATen overload and the number of its call.
        lines: Python line of each call of the Program.
    """
    found = findings(output)
    if not found:
        tail = "\n".join(output.strip().splitlines()[-15:])
        how = f"was ended by signal {-status}" if status < 0 else f"failed with exit status {status}"
        return CompilerError(f"neuronx-cc {how} on {module} and named no error. Its last lines:\n{tail}", log=output)
    first = found[0]
    op, number = origin((metadata or {}).get(first.instruction or "", ""))
    line = lines[number] if number is not None and number < len(lines) else None
    where = "".join([f", in {op}" if op else "", f" at {line}" if line else ""])
    remedy = REMEDIES.get(first.code, "see the compiler's documentation of this code")
    return CompilerError(
        f"neuronx-cc refuses {module}{where}: NCC_{first.code}: {first.text}\nWhat to do: {remedy}.", first.code, op, line, output
    )


_ORIGIN = re.compile(r"(?P<op>[a-z_0-9]+::[\w.]+)(?:#(?P<call>\d+))?")


def origin(op_name: str) -> tuple[str | None, int | None]:
    """ATen overload and number of the call in an HLO ``op_name``."""
    match = _ORIGIN.search(op_name)
    if match is None:
        return None, None
    return match["op"], int(match["call"]) if match["call"] else None

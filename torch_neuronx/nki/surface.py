"""The table of implemented functions in docs/nki.md: ``python -m torch_neuronx.nki.surface`` prints it."""

from __future__ import annotations

import inspect
from types import ModuleType

from torch_neuronx.nki import collectives, isa, language
from torch_neuronx.nki.opcode import OPCODES, Opcode

# What AWS's work-lists of NKI 0.6 name and is not a function with a signature of its own here.
_NOT_FUNCTIONS = {"NkiInstruction", "NkiScalar", "VirtualRegister", "NkiValidationError", "NkiTensor", "NKIObject", "MemoryRegion", "DType"}


def functions(module: ModuleType) -> dict[str, object]:
    """The public callables of a module, by name; without classes and enums."""
    own = module.__name__
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in _NOT_FUNCTIONS or inspect.isclass(value) or inspect.ismodule(value):
            continue
        if isinstance(value, Opcode) or (callable(value) and str(getattr(value, "__module__", "")).startswith("torch_neuronx.nki")):
            if own.endswith("collectives") and getattr(value, "__module__", own) != own:
                continue
            found[name] = value
    return dict(sorted(found.items()))


def _summary(value: object) -> str:
    text = inspect.getdoc(value) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|").split(". ")[0].rstrip(".")


def _signature(name: str, value: object) -> str:
    parameters = [str(p).split(":")[0].split(" = ")[0].split("=")[0] for p in inspect.signature(value).parameters.values()]  # type: ignore[arg-type]
    return f"`{name}({', '.join(p for p in parameters if p != 'name')})`"


def _engines(name: str) -> str:
    row = OPCODES.get(name)
    if row is None:
        return "-"
    since = "" if row.since.name == "trn1" else f", {row.since.name}+"
    return ", ".join(e.name for e in row.engines) + since


def table() -> str:
    """The tables as Markdown."""
    lines = []
    for title, module in (("nki.isa", isa), ("nki.language", language), ("nki.collectives", collectives)):
        found = functions(module)
        lines += [f"### `{title}`: {len(found)} functions", "", "| function | engine | does |", "|---|---|---|"]
        for name, value in found.items():
            engines = _engines(name) if title == "nki.isa" else ""
            lines.append(f"| {_signature(name, value)} | {engines} | {_summary(value)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

"""From StableHLO to the serialized HLO module that neuronx-cc takes, with the aliases that the Program means, verified."""

from __future__ import annotations

import re
from typing import Any


def set_aliases(module: Any, aliases: dict[int, int]) -> None:
    """Says in an MLIR ``module`` that result i *is* parameter ``aliases[i]``: the same memory, not a permission to share it."""
    from jaxlib.mlir import ir

    if not aliases:
        return
    rows = ", ".join(
        f'{{alias = {{kind = "must_alias", parameter_index = array<i64>, parameter_number = {parameter} : i64}}, '
        f"output_index = array<i64: {result}>}}"
        for result, parameter in sorted(aliases.items())
    )
    with module.context:
        module.operation.attributes["mhlo.input_output_alias"] = ir.Attribute.parse(f"[{rows}]")


def set_replicas(module: Any, count: int) -> None:
    """Says in an MLIR ``module`` how many replicas run it together."""
    from jaxlib.mlir import ir

    with module.context:
        module.operation.attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), count)


def to_hlo(module: Any) -> bytes:
    """The serialized ``HloModuleProto`` of a StableHLO module (an MLIR module, its text, or what :func:`lower` gives).

    The entry computation takes its parameters one by one and returns a tuple. The bytes are parsed back before they are returned.

    Raises:
        ValueError: the module has dynamic shapes, or XLA does not accept it.
    """
    from jaxlib import _jax

    module = getattr(module, "module", module)
    text = module if isinstance(module, (str, bytes)) else _bytecode(module)
    try:
        computation = _jax.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=True)
    except Exception as error:
        raise ValueError(f"XLA does not take this module as HLO: {error}") from error
    serialized = bytes(computation.as_serialized_hlo_module_proto())
    hlo_text(serialized)
    return serialized


def _bytecode(module: Any) -> bytes:
    import io

    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    return stream.getvalue()


def hlo_text(serialized: bytes) -> str:
    """The HLO text of a serialized module. ValueError: it is none."""
    from jaxlib import _hlo

    try:
        return str(_hlo.HloModule.from_serialized_hlo_module_proto(serialized).to_string())
    except Exception as error:
        raise ValueError(f"not a serialized HloModuleProto: {error}") from error


_ALIAS = re.compile(r"\{(\d+)\}: \((\d+), \{\}, (may|must)-alias\)")


def aliases_of(text: str) -> dict[int, int]:
    """Result -> parameter of the must-alias pairs in HLO ``text`` (or serialized bytes)."""
    if isinstance(text, bytes):
        text = hlo_text(text)
    header = text.split("\n", 1)[0]
    return {int(result): int(parameter) for result, parameter, kind in _ALIAS.findall(header) if kind == "must"}


def fingerprint(serialized: bytes) -> str:
    """64 hex digits that two modules share when they differ in debug information only (source lines, names of operators)."""
    import hashlib

    from jaxlib import _hlo

    options = _hlo.HloPrintOptions.canonical()
    options.print_metadata = False
    options.print_large_constants = True  # XLA's own "fingerprint" options leave them out
    options.print_backend_config = True
    module = _hlo.HloModule.from_serialized_hlo_module_proto(serialized)
    return hashlib.sha256(module.to_string(options).encode()).hexdigest()


_NAMED = re.compile(r"%(?P<instruction>[\w.\-]+) = .*?op_name=\"(?P<name>[^\"]*)\"")


def op_names(serialized: bytes) -> dict[str, str]:
    """Instruction -> the path of operators that it comes from; {} for what is no HLO."""
    try:
        text = hlo_text(serialized)
    except ValueError:
        return {}
    return {match["instruction"]: match["name"] for match in _NAMED.finditer(text)}

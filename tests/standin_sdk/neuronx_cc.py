"""``neuronx-cc``, as far as it is documented: its command line, what it refuses and with which words, a NEFF-shaped result.

The NEFF holds the HLO with the compiler's custom calls expanded (but for NKI kernels), and a tensor table. Its build field says that it is
the stand-in's.
Environment, for tests: STANDIN_CC_SLEEP (seconds before it works), STANDIN_CC_EXIT (status to fail with), STANDIN_CC_CALLS (a file that
gets a line for each compilation).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

VERSION = "2.27.5334.0+standin"
BUILD = "torchneuron-standin-cc"
_DOWNCASTS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        unknown = message.removeprefix("unrecognized arguments: ")
        refuse("EARG002", f"Illegal argument(s), unrecognized: {unknown}" if unknown != message else f"Illegal argument(s): {message}")


def refuse(code: str, message: str) -> None:
    print(f"[NCC_{code}] {message}", file=sys.stderr)
    sys.exit(70)


def parser() -> argparse.ArgumentParser:
    p = _Parser(prog="neuronx-cc compile", allow_abbrev=False)
    p.add_argument("model", type=Path)
    p.add_argument("--framework", choices=["XLA"], required=True)
    p.add_argument("--target", choices=["inf2", "trn1", "trn1n", "trn2", "trn3"], required=True)
    p.add_argument("--model-type", choices=["generic", "transformer", "unet-inference"], default="generic")
    p.add_argument("--optlevel", "-O", choices=["1", "2", "3"], default="2")
    p.add_argument("--auto-cast", choices=["none", "matmult", "all"], default="none")
    p.add_argument("--auto-cast-type", choices=["bf16", "fp16", "tf32", "fp8_e4m3"], default="bf16")
    p.add_argument("--logical-nc-config", "-lnc", "--lnc", type=int, choices=[1, 2])
    p.add_argument("--distribution-strategy", choices=["llm-training"])
    for flag in (
        "--enable-mixed-precision-accumulation",
        "--disable-mixed-precision-accumulation",
        "--enable-saturate-infinity",
        "--enable-fast-context-switch",
        "--enable-fast-loading-neuron-binaries",
        "--enable-internal-neff-wrapper",
    ):
        p.add_argument(flag, action="store_true")
    p.add_argument("--native-int64", choices=["default", "enabled", "disabled"], default="default")
    p.add_argument("--implicit-integer-downcast", default="default")
    p.add_argument("--output", type=Path, default=Path("file.neff"))
    p.add_argument("--logfile", type=Path)
    p.add_argument("--logfile-verbose")
    p.add_argument("--verbose")
    p.add_argument("--pipeline", nargs="+")
    for option in ("--internal-hlo2tensorizer-options", "--tensorizer-options", "--internal-enable-dge-levels"):
        p.add_argument(option, default="")
    for option in ("--internal-tensorizer-opt-level", "--execute-repetition", "--hbm-scratchpad-page-size", "--tiled-inst-limit"):
        p.add_argument(option)
    return p


def downcasts(text: str) -> frozenset[str]:
    """What --implicit-integer-downcast permits."""
    if text in ("default", "all"):
        return frozenset(_DOWNCASTS)
    return frozenset() if text == "none" else frozenset(text.split(","))


def tensor_table(text: str) -> dict[str, Any]:
    """Names, dtypes and shapes of parameters and results, and which result is which parameter's memory."""
    layout = re.search(r"entry_computation_layout=\{\((?P<inputs>.*?)\)->(?P<outputs>.*)\}$", text.split("\n", 1)[0])
    assert layout is not None, text.split("\n", 1)[0]

    def shapes(part: str) -> list[dict[str, Any]]:
        found = re.findall(r"(\w+)\[([\d,]*)\]", part)
        return [{"dtype": dtype, "shape": [int(size) for size in sizes.split(",") if size]} for dtype, sizes in found]

    inputs, outputs = shapes(layout["inputs"]), shapes(layout["outputs"])
    for kind, rows in (("input", inputs), ("output", outputs)):
        for index, row in enumerate(rows):
            row["name"] = f"{kind}{index}"
    return {
        "inputs": inputs,
        "outputs": outputs,
        "aliases": dict(re.findall(r"\{(\d+)\}: \((\d+), \{\}, must-alias\)", text.split("\n", 1)[0])),
    }


def hlo_text(hlo: bytes) -> str:
    from jaxlib import _hlo

    try:
        return str(_hlo.HloModule.from_serialized_hlo_module_proto(hlo).to_string())
    except Exception as error:
        refuse("EVRF064", f"HLO verifier failed: {error}")
        raise


def compile_model(options: argparse.Namespace) -> None:
    from tests.standin_sdk.pack import pack
    from tests.standin_sdk.refusals import Context, refusals

    lnc = options.logical_nc_config or (2 if options.target in ("trn2", "trn3") else 1)
    if lnc == 2 and options.target not in ("trn2", "trn3"):
        refuse("EARG001", f"Logical NeuronCore config 2 is not supported by target {options.target}")
    hlo = options.model.read_bytes()
    text = hlo_text(hlo)
    fp8 = "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3" in options.internal_hlo2tensorizer_options
    found = refusals(text, Context(options.target, downcasts(options.implicit_integer_downcast), fp8))
    if found:
        refuse(*found[0])
    table = tensor_table(text)
    if "custom-call(" in text:  # JAX is imported for those alone
        from tests.standin_sdk.expand import expand
        from tests.standin_sdk.kernels import refusal

        def refuse_kernel(config: str) -> None:
            if why := refusal(config, options.target, lnc):
                refuse("EVRF015", f"custom-call target 'AwsNeuronCustomNativeKernel': {why}")

        hlo = expand(hlo, refuse_kernel)
    files = {"hlo.pb": hlo, "tensors.json": json.dumps(table).encode()}
    name = f"{options.model.stem}-{hashlib.sha256(hlo).hexdigest()[:8]}"
    compress = not options.enable_fast_loading_neuron_binaries
    options.output.write_bytes(pack(files, name, f"{BUILD} {options.target}", lnc, compress))
    print("Compiler status PASS")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--version"]:
        print(f"NeuronX Compiler version {VERSION}")
        return
    if arguments[:1] == ["list-operators"]:
        from tests.standin_sdk.refusals import _UNSUPPORTED

        print("\n".join(sorted({"add", "dot", "convolution", "reduce", "scatter", "gather", "sort", "while"} - _UNSUPPORTED)))
        return
    if arguments[:1] != ["compile"]:
        refuse("EARG002", f"Illegal argument(s), unrecognized: {' '.join(arguments[:1])}")
    # "-O1" is accepted besides "-O 1".
    options = parser().parse_args([part for word in arguments[1:] for part in _split(word)])
    if log := os.environ.get("STANDIN_CC_CALLS"):
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {' '.join(arguments)}\n")
    time.sleep(float(os.environ.get("STANDIN_CC_SLEEP", "0")))
    if status := os.environ.get("STANDIN_CC_EXIT"):
        sys.exit(int(status))
    compile_model(options)


def _split(word: str) -> list[str]:
    return [word[:2], word[2:]] if re.fullmatch(r"-O\d", word) else [word]


if __name__ == "__main__":
    main(sys.argv[1:])

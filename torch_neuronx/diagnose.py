"""``python -m torch_neuronx.diagnose``: looks at an installation and says what to do.

It reads files, metadata and the environment, and imports neither PyTorch nor the extension, so it works when they do not. ``--load``
adds a trial run in a process of its own. Exit status: 0 when nothing is wrong, 1 when something is, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import glob
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torch_neuronx import config

TORCH_RANGE = ((2, 13), (2, 14))  # from, below
PYTHON_FROM = (3, 10)
_PACKAGE = Path(__file__).parent
_RUNTIME_PLACES = ("/opt/aws/neuron/lib",)
_TRIAL = "import torch; x = torch.ones(2, device='neuron'); assert (x + x).sum().item() == 4; print(torch.neuron.get_device_name())"


@dataclass(frozen=True)
class Check:
    """One thing looked at. ``status``: "ok", "note" or "problem"; ``remedy`` says what to do about it."""

    name: str
    status: str
    found: str
    remedy: str = ""


def _python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Check("python", "problem", found, "TorchNeuron runs on Linux only.")
    if sys.version_info < PYTHON_FROM:
        return Check("python", "problem", found, f"Use Python {'.'.join(map(str, PYTHON_FROM))} or newer.")
    return Check("python", "ok", found)


def _torch() -> Check:
    low, high = (".".join(map(str, version)) for version in TORCH_RANGE)
    install = f'Install it with: {sys.executable} -m pip install "torch>={low},<{high}"'
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Check("torch", "problem", "not installed", install)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not TORCH_RANGE[0] <= numbers < TORCH_RANGE[1]:
        return Check("torch", "problem", version, f"This TorchNeuron works with torch from {low} and below {high}. {install}")
    return Check("torch", "ok", version)


def _other_product() -> Check | None:
    """AWS's own distribution, which has the same import name."""
    try:
        version = importlib.metadata.version("torch-neuronx")
    except importlib.metadata.PackageNotFoundError:
        return None
    return Check(
        "torch-neuronx",
        "problem",
        f"AWS's torch-neuronx {version} is installed too",
        "Both are imported as torch_neuronx: uninstall one, or use two environments.",
    )


def _entry_point() -> Check:
    wanted = "torch_neuronx:_autoload"
    found = [f"{entry.name} = {entry.value}" for entry in importlib.metadata.entry_points(group="torch.backends")]
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        return Check(
            "autoload",
            "note",
            "switched off by TORCH_DEVICE_BACKEND_AUTOLOAD=0",
            "Unset it, or write `import torch_neuronx` after `import torch`.",
        )
    if not any(entry.endswith(wanted) for entry in found):
        return Check(
            "autoload",
            "problem",
            "no entry point torch.backends -> " + wanted,
            "The package is not installed, only importable: run `make setup`, or `pip install` it.",
        )
    others = [entry for entry in found if not entry.endswith(wanted)]
    if others:
        return Check("autoload", "note", "; ".join(found), "Other backends load too; only one of them can own PyTorch's PrivateUse1 slot.")
    return Check("autoload", "ok", found[0])


def _libraries() -> Iterator[Check]:
    build = "Build it with `make build`, or install the wheel again."
    modules = [_PACKAGE / f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    present = [path for path in modules if path.exists()]
    others = sorted(_PACKAGE.glob("_C.*.so"))
    if present:
        yield Check("extension", "ok", present[0].name)
    elif others:
        yield Check("extension", "problem", f"{others[0].name} is for another Python than {platform.python_version()}", build)
    else:
        yield Check("extension", "problem", "torch_neuronx/_C is missing", build)
    library = _PACKAGE / "libtorch_neuronx.so"
    if not library.exists():
        yield Check("library", "problem", "torch_neuronx/libtorch_neuronx.so is missing", build)
    elif library.read_bytes()[:4] != b"\x7fELF":
        yield Check("library", "problem", "libtorch_neuronx.so is not a shared library", build)
    else:
        yield Check("library", "ok", f"libtorch_neuronx.so, {library.stat().st_size / 2**20:.1f} MiB")


def _chip() -> Check:
    devices = sorted(glob.glob("/dev/neuron[0-9]*"))
    target = os.environ.get("TORCH_NEURONX_TARGET") or "auto"
    if devices:
        runtime = [place for place in _runtime_places() if (Path(place) / "libnrt.so.1").exists()]
        if not runtime:
            return Check(
                "chip",
                "problem",
                f"{len(devices)} Neuron devices, but no libnrt.so.1",
                "Install aws-neuronx-runtime-lib, or put its folder into LD_LIBRARY_PATH.",
            )
        unreadable = [device for device in devices if not os.access(device, os.R_OK | os.W_OK)]
        if unreadable:
            return Check(
                "chip",
                "problem",
                f"no permission for {unreadable[0]}",
                "Add the user to the group that owns it, or give the container the device.",
            )
        return Check("chip", "ok", f"{len(devices)} Neuron devices, runtime in {runtime[0]}")
    if target == "trainium":
        return Check(
            "chip",
            "problem",
            "TORCH_NEURONX_TARGET=trainium, but there is no /dev/neuron0",
            "Install aws-neuronx-dkms on a Trainium host, or unset TORCH_NEURONX_TARGET to emulate.",
        )
    return Check("chip", "ok", "none; the device is emulated")


def _runtime_places() -> list[str]:
    return [*_RUNTIME_PLACES, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]


def _environment() -> Iterator[Check]:
    for finding in config.check_environment(os.environ):
        if finding.fatal:
            yield Check("environment", "problem", finding.text, "Correct or unset it.")
        else:
            yield Check("environment", "note", finding.text)


def _memory() -> Check:
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
    available = int(facts["MemAvailable"]) / 2**20
    found = f"{available:.1f} GiB of host memory available to emulated devices"
    if available < 1:
        return Check("memory", "note", found, "Large models will run out of memory.")
    return Check("memory", "ok", found)


def _trial() -> Check:
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    try:
        run = subprocess.run([sys.executable, "-c", _TRIAL], env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return Check(
            "trial",
            "problem",
            "an addition on the device did not end within 120 s",
            "Run it under `py-spy dump` or gdb to see where it waits.",
        )
    if run.returncode == 0:
        return Check("trial", "ok", f"an addition on {run.stdout.strip()}")
    last = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    return Check("trial", "problem", last, f'The whole message: {sys.executable} -c "{_TRIAL}"')


def run_checks(load: bool = False) -> list[Check]:
    """All checks, in the order in which their remedies should be applied. ``load`` adds the trial run."""
    checks = [_python(), _torch()]
    if (other := _other_product()) is not None:
        checks.append(other)
    checks += [_entry_point(), *_libraries(), _chip(), *_environment(), _memory()]
    if load:
        checks.append(_trial())
    return checks


def _text(checks: list[Check]) -> str:
    lines = []
    for check in checks:
        lines.append(f"{check.status:>8}  {check.name:<12} {check.found}")
        if check.remedy:
            lines.append(f"{'':>8}  {'':<12} -> {check.remedy}")
    problems = sum(check.status == "problem" for check in checks)
    lines.append("Nothing is wrong." if not problems else f"{problems} problem{'s' if problems > 1 else ''}; start with the first.")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks, prints them and gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_neuronx.diagnose", description="Check this TorchNeuron installation and say what to do."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--load", action="store_true", help="also run an addition on the device, in a process of its own")
    options = parser.parse_args(arguments)
    checks = run_checks(options.load)
    ok = all(check.status != "problem" for check in checks)
    if options.json:
        print(json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print(_text(checks))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

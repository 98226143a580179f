"""Instantiates the generic test classes of a suite for ``cpu`` and ``neuron``, and runs one test in this process."""

import importlib
import time
import unittest
import warnings
import zlib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

DEVICES = ("cpu", "neuron")
DEVICE = "{device}"  # stands for the device in a test's name: test_out_add_{device}_float32


def suites() -> list[str]:
    return sorted(path.stem.removesuffix("_tests") for path in Path(__file__).parent.glob("*_tests.py"))


@dataclass(frozen=True, order=True)
class Test:
    """``suite/Class.method``, the method's name with ``{device}`` where the device stands."""

    __test__ = False  # to pytest: not a class of tests

    suite: str
    cls: str
    method: str

    def __str__(self) -> str:
        return f"{self.suite}/{self.cls}.{self.method}"

    def share(self, shares: int) -> int:
        """Which of ``shares`` fixed parts of all tests this one belongs to, the same in every process and version of Python."""
        return zlib.crc32(str(self).encode()) % shares


@dataclass
class Outcome:
    """status: passed | failed | skipped | xfailed | missing (no such test on this device) | crash | timeout."""

    status: str
    reason: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _cpu_limits_hold_for_neuron() -> None:
    """What a database states for ``cpu`` (tolerances, skips, failures) holds for ``neuron`` too: the CPU's kernels compute there."""
    from torch.testing._internal.opinfo.core import DecorateInfo

    on_device = DecorateInfo.is_active

    def is_active(self: Any, cls_name: Any, test_name: Any, device_type: Any, dtype: Any, param_kwargs: Any) -> Any:
        if device_type in ("neuron", "privateuse1") and self.device_type == "cpu":
            device_type = "cpu"
        return on_device(self, cls_name, test_name, device_type, dtype, param_kwargs)

    setattr(DecorateInfo, "is_active", is_active)  # noqa: B010  mypy forbids to assign to a method


@cache
def prepare() -> None:
    """Once a process, before any suite is imported."""
    warnings.simplefilter("ignore")
    import torch
    from torch.testing._internal import common_device_type

    if not torch.neuron.is_available():
        raise RuntimeError("device neuron is not available: run `python -m torch_neuronx.diagnose` to see why")
    # What PrivateUse1TestBase.setUpClass does; from the start, so that databases are asked for "neuron" when tests are made.
    common_device_type.PrivateUse1TestBase.setUpClass()
    _cpu_limits_hold_for_neuron()


@cache
def classes(suite: str) -> dict[str, type]:
    """The generic classes of a suite, by name."""
    prepare()
    return {cls.__name__: cls for cls in importlib.import_module(f"tests.upstream.{suite}_tests").CLASSES}


@cache
def instantiated(suite: str, name: str) -> dict[str, type]:
    """The class for each device."""
    from torch.testing._internal.common_device_type import instantiate_device_type_tests

    scope = {name: classes(suite)[name]}
    instantiate_device_type_tests(scope[name], scope, only_for=DEVICES)
    return {device: scope[name + device.upper()] for device in DEVICES}


def tests_of(suite: str) -> list[Test]:
    """Every test that exists on one of the devices."""
    found = []
    for name in classes(suite):
        made = instantiated(suite, name)
        on_neuron = set(unittest.TestLoader().getTestCaseNames(made["neuron"]))
        generic = {DEVICE.join(method.rsplit("neuron", 1)) for method in on_neuron}
        for method in unittest.TestLoader().getTestCaseNames(made["cpu"]):
            if not any(_method(made["cpu"], candidate, "cpu") == method for candidate in _candidates(method) if candidate in generic):
                generic.add(DEVICE.join(method.rsplit("cpu", 1)))
        found += [Test(suite, name, method) for method in sorted(generic)]
    return found


def _candidates(method: str) -> list[str]:
    """What a CPU test's name may be without its device: any of the places where "cpu" occurs."""
    parts = method.split("cpu")
    return ["cpu".join(parts[:index]) + DEVICE + "cpu".join(parts[index:]) for index in range(1, len(parts))]


def _method(cls: type, method: str, device: str) -> str | None:
    name = method.replace(DEVICE, device)
    return name if hasattr(cls, name) else None


def run(test: Test, device: str) -> Outcome:
    """Runs ``test`` on ``device`` here, with the class's fixtures."""
    cls = instantiated(test.suite, test.cls)[device]
    method = _method(cls, test.method, device)
    if method is None:
        return Outcome("missing", f"not instantiated on {device}")
    result = unittest.TestResult()
    start = time.monotonic()
    unittest.TestSuite([cls(method)]).run(result)
    return Outcome(*_status(result), seconds=time.monotonic() - start)


def _status(result: unittest.TestResult) -> tuple[str, str]:
    for _, text in (*result.errors, *result.failures):
        return "failed", _shorten(text)
    for _ in result.unexpectedSuccesses:
        # Our tests take fewer samples than PyTorch's own, so what the database expects to fail need not.
        return "passed", "though PyTorch's database expects a failure"
    for _, text in result.expectedFailures:
        return "xfailed", _shorten(text)
    for _, reason in result.skipped:
        return "skipped", reason
    return "passed", ""


def _shorten(trace: str) -> str:
    """The message of a traceback, without PyTorch's advice how to reproduce it, and the last line of ours or of the test."""
    text = trace.split("\nTo execute this test")[0].split("\nCaused by ")
    lines = text[0].strip().splitlines()
    start = max((i for i, line in enumerate(lines) if line.startswith("  File ")), default=-1)
    message = [line for line in lines[start + 1 :] if line.strip() and not line.startswith("    ")] or lines[-1:]
    cause = f" | {text[-1].strip()[:300]}" if len(text) > 1 else ""
    return " ".join(" ".join(message).split())[:600] + cause

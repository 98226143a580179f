"""PyTorch's own ``DistributedTest``, as it is in the installed wheel, on ``neuron`` and on the CPU with Gloo.

``python -m tests.distributed.upstream [--match TEXT] [--json FILE]`` runs both and prints what the CPU passes and ``neuron`` does not.
The tests make their tensors on the default device, so the suite for Gloo runs unmodified: only backend and default device differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

# Read when the suite is imported, here and in the processes that it starts.
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="distributed-test-"))

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestGloo(TestDistBackend, DistributedTest._DistTestBase):
    """On the CPU."""


class TestNeuron(TestDistBackend, DistributedTest._DistTestBase):
    """The same on ``neuron``."""

    @classmethod
    def _run(cls, rank: Any, test_name: Any, file_name: Any, pipe: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(test_name, distributed_test.default_pg_timeout)
        torch.neuron.set_device(rank)
        torch.set_default_device(torch.device("neuron", rank))
        dist.init_process_group(
            "cpu:gloo,neuron:neuron",
            init_method=self.init_method,
            world_size=int(self.world_size),
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        self._barrier()
        self.run_test(test_name, pipe)
        self._barrier()
        dist.destroy_process_group()
        sys.exit(0)


class Outcomes(unittest.TextTestResult):
    """Remembers every test's outcome by name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outcomes: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcomes[test.id().rsplit(".", 1)[1]] = "pass"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.outcomes[test.id().rsplit(".", 1)[1]] = f"skip: {reason}"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.outcomes[test.id().rsplit(".", 1)[1]] = f"fail: {err[1]}"[-2000:]

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.outcomes[test.id().rsplit(".", 1)[1]] = f"fail: {err[1]}"[-2000:]


def run(kind: type[unittest.TestCase], names: list[str]) -> dict[str, str]:
    suite = unittest.TestSuite(kind(name) for name in names)
    result = unittest.TextTestRunner(sys.stderr, resultclass=Outcomes, verbosity=2).run(suite)
    assert isinstance(result, Outcomes)
    return result.outcomes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--match", default="", help="only tests whose name contains this")
    parser.add_argument("--share", default="1/1", help="I/N: only every N-th test, from the I-th on")
    parser.add_argument("--json", type=Path, help="write every outcome there")
    options = parser.parse_args()
    names = [name for name in unittest.TestLoader().getTestCaseNames(TestGloo) if options.match in name]
    index, count = map(int, options.share.split("/"))
    names = names[index - 1 :: count]
    cpu = run(TestGloo, names)
    wanted = [name for name, outcome in cpu.items() if outcome == "pass"]
    neuron = run(TestNeuron, wanted)
    worse = {name: neuron[name] for name in wanted if neuron[name] != "pass"}
    if options.json:
        options.json.write_text(json.dumps({"cpu": cpu, "neuron": neuron}, indent=1))
    for name, outcome in worse.items():
        print(f"{name}: {outcome.strip().splitlines()[-1][:200] if outcome.strip() else outcome}")
    print(f"{len(names)} tests; the CPU passes {len(wanted)}; neuron does not pass {len(worse)} of these")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())

"""PyTorch's own suites of ``torch.distributed``, as they are in the installed wheel, on ``neuron`` and on the CPU with Gloo.

``python -m tests.distributed.upstream [--suite c10d|rpc] [--match TEXT] [--json FILE]`` runs a test on ``neuron``, then on the CPU, and
prints what the CPU passes and ``neuron`` does not. ``c10d`` is ``DistributedTest``, ``rpc`` what ``upstream_rpc.py`` lists.
The tests make their tensors on the default device, so the suites for the CPU run unmodified: only backend and default device differ.
Tests that ask for CUDA devices or for NCCL are skipped by the suites themselves, on both. A test counts if one of its ranks had memory of
the device, or if it failed on ``neuron``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

# Read when the suite is imported, here and in the processes that it starts.
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "4")  # with fewer, the suite leaves out more tests
if "TEMP_DIR" not in os.environ:
    os.environ["TEMP_DIR"] = tempfile.mkdtemp(prefix="distributed-test-")
# Not in TEMP_DIR, which the suite sets anew for each test.
if "TEST_TOUCHED" not in os.environ:
    os.environ["TEST_TOUCHED"] = tempfile.mkdtemp(prefix="distributed-test-touched-")

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

from torch_neuronx.distributed import monitored_barrier

TOUCHED = Path(os.environ["TEST_TOUCHED"])
FORKS = torch.multiprocessing.get_context("forkserver")


class Rank(FORKS.Process):  # type: ignore[name-defined, misc]
    """A process forked from one that has imported PyTorch, with the environment of now instead of the fork server's."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.environment = dict(os.environ)

    def run(self) -> None:
        os.environ.update(self.environment)
        super().run()


def note_use(kind: type, test: str) -> None:
    """In a rank, at its end: remembers that ``test`` was given memory of the device."""
    if torch.neuron.memory_stats().get("allocation.all.allocated", 0) > 0:
        (TOUCHED / key(kind, test)).touch()


def key(kind: type, test: str) -> str:
    return f"{kind.__name__.removeprefix('Cpu').removeprefix('Neuron')}.{test}"


class CpuDistributedTest(TestDistBackend, DistributedTest._DistTestBase):
    """On the CPU, a process for each rank."""

    def setUp(self) -> None:
        super().setUp()
        FORKS.set_forkserver_preload([distributed_test.__name__, "torch_neuronx.distributed"])
        self._start_processes(Rank)

    def _check_return_codes(self, fn: Any, elapsed_time: float) -> None:
        assert self.processes, "no rank was started, so nothing was tested"  # PyTorch's own code calls that a pass
        super()._check_return_codes(fn, elapsed_time)

    def _barrier(self, *arguments: Any, **options: Any) -> None:
        super()._barrier(*arguments, **{"timeout": 100, **options})  # PyTorch's 10 s pass on a busy machine


NAMES = "cpu:gloo,neuron:neuron"
make_objects = distributed_test.create_collectives_object_test_list


def objects() -> Any:
    """What the tests of object collectives send, with their tensors on the CPU: on ``neuron`` they would come from another device each, as
    with CUDA, and the tests compare them with their own."""
    with torch.device("cpu"):
        return make_objects()


class NeuronDistributedTest(CpuDistributedTest):
    """The same on ``neuron``."""

    @classmethod
    def _run(cls, rank: Any, test_name: Any, file_name: Any, pipe: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(test_name, distributed_test.default_pg_timeout)
        torch.neuron.set_device(rank)
        torch.set_default_device(torch.device("neuron", rank))
        distributed_test.create_collectives_object_test_list = objects
        dist.monitored_barrier = monitored_barrier  # PyTorch's own refuses every name but "gloo"
        if test_name == "test_get_backend":
            distributed_test.BACKEND = NAMES  # what it expects is the name that the group was made with
        dist.init_process_group(
            NAMES,
            init_method=self.init_method,
            world_size=int(self.world_size),
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        self._barrier()
        try:
            self.run_test(test_name, pipe)
        finally:
            note_use(cls, test_name)
        self._barrier()
        dist.destroy_process_group()
        sys.exit(0)


# What the CPU passes and ``neuron`` does not, each with its reason. A row whose test passes is an error too.
ROWS = {
    "DistributedTest.test_ddp_logging_data_cpu": "wants the backend's name in DDP's logging data; c10d calls all but its own 'custom'",
}

Suites = dict[type[unittest.TestCase], type[unittest.TestCase]]  # on the CPU, on neuron


def suites(name: str) -> tuple[Suites, dict[str, str]]:
    if name == "c10d":
        return {CpuDistributedTest: NeuronDistributedTest}, ROWS
    from tests.distributed import upstream_rpc

    return upstream_rpc.SUITES, upstream_rpc.ROWS


class Outcomes(unittest.TextTestResult):
    """Remembers every test's outcome by name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outcomes: dict[str, str] = {}

    def _note(self, test: Any, outcome: str) -> None:
        self.outcomes[key(type(test), test._testMethodName)] = outcome

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._note(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, f"skip: {reason}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, f"fail: {err[1]}"[:6000])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._note(test, f"fail: {err[1]}"[:6000])


def run(tests: list[tuple[type[unittest.TestCase], str]]) -> dict[str, str]:
    suite = unittest.TestSuite(kind(name) for kind, name in tests)
    result = unittest.TextTestRunner(sys.stderr, resultclass=Outcomes, verbosity=2).run(suite)
    assert isinstance(result, Outcomes)
    return result.outcomes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", choices=("c10d", "rpc"), default="c10d")
    parser.add_argument("--match", default="", help="only tests whose SUITE.NAME matches this regular expression")
    parser.add_argument("--share", default="1/1", help="I/N: only every N-th test, from the I-th on")
    parser.add_argument("--json", type=Path, help="write every outcome there")
    options = parser.parse_args()
    pairs, rows = suites(options.suite)
    load = unittest.TestLoader().getTestCaseNames
    tests = [(kind, name) for kind in pairs for name in load(kind) if re.search(options.match, key(kind, name))]
    index, count = map(int, options.share.split("/"))
    tests = tests[index - 1 :: count]
    neuron = run([(pairs[kind], name) for kind, name in tests])
    counts = [(kind, name) for kind, name in tests if neuron[key(kind, name)].startswith("fail") or (TOUCHED / key(kind, name)).exists()]
    cpu = run(counts)
    shutil.rmtree(TOUCHED)
    if options.json:
        options.json.write_text(json.dumps({"cpu": cpu, "neuron": neuron}, indent=1))
    wanted = [name for name, outcome in cpu.items() if outcome == "pass"]
    worse = [name for name in wanted if neuron[name] != "pass"]
    fixed = [name for name in wanted if name in rows and name not in worse]
    for name in worse:
        print(f"{name}: {rows.get(name) or cause(neuron[name])}")
    for name in fixed:
        print(f"{name}: passes now; remove its row")
    print(f"{len(tests)} tests, {len(counts)} use the device;", end=" ")
    print(f"the CPU passes {len(wanted)}; neuron does not pass {len(worse)} of these")
    return bool(fixed or set(worse) - rows.keys())


def cause(outcome: str) -> str:
    """The first line that names an exception, of a traceback of several ranks."""
    lines = outcome.strip().splitlines()
    return next((line for line in lines if re.match(r"\w*(Error|Exception)\b", line)), lines[-1] if lines else outcome)[:200]


if __name__ == "__main__":
    sys.exit(main())

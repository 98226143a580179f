"""PyTorch's own device-generic test files, unmodified, on ``neuron`` and on the CPU: ``make upstream PYTORCH=<checkout of tag v2.13.0>``.

Each file runs in its own processes through pytest, once per device: on ``neuron`` through PyTorch's PrivateUse1TestBase (with the classes
that PyTorch instantiates for CUDA alone), on the CPU without this backend. A test that crashes or hangs fails, the file goes on. Of
openreg's tests (the backend that PyTorch keeps as an example) a copy runs, with openreg's name replaced by ours and on ``neuron`` only.

The checkout is the user's; nothing is written into it but Python's bytecode caches.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

DEVICES = ("neuron", "cpu")
FILES = (
    *(f"test_ops{kind}" for kind in ("", "_gradients", "_fwd_gradients")),
    *"test_torch test_nn test_modules test_optim test_autograd test_indexing test_view_ops test_tensor_creation_ops".split(),
    *"test_reductions test_unary_ufuncs test_binary_ufuncs test_linalg test_sort_and_select test_shape_ops".split(),
    *"test_type_promotion test_foreach test_serialization test_random test_spectral_ops test_sparse test_testing".split(),
    *(f"functorch/test_{kind}" for kind in ("ops", "vmap", "eager_transforms", "aotdispatch")),
)
OPENREG = Path("cpp_extensions/open_registration_extension/torch_openreg/tests")

GRACE = 60  # seconds for pytest to write down what it has, once it was interrupted


class BadCheckout(Exception):
    """What was named is not a checkout of the PyTorch that is installed."""


def check_version(checkout: Path) -> None:
    """Tests of another version ask for other behaviour. Raises BadCheckout."""
    import torch

    wanted = re.match(r"[\d.]+\d", torch.__version__)[0]
    remedy = f"Make one: git clone --depth 1 --branch v{wanted} https://github.com/pytorch/pytorch"
    try:
        version = (checkout / "version.txt").read_text().strip()
    except OSError as error:
        raise BadCheckout(f"{checkout} is no checkout of PyTorch ({error}). {remedy}") from None
    found = re.match(r"[\d.]+\d", version)
    if found is None or found[0] != wanted:
        raise BadCheckout(f"{checkout} is PyTorch {version}, but {torch.__version__} is installed. {remedy}")


def copy_openreg(checkout: Path, to: Path) -> list[str]:
    """Copies openreg's tests into ``to`` under our names; gives the names of the files. A checkout may have none."""
    names = []
    to.mkdir(parents=True, exist_ok=True)
    for path in sorted((checkout / "test" / OPENREG).glob("*.py")):
        text = path.read_text().replace("torch_openreg", "torch_neuronx").replace("openreg", "neuron").replace("OPENREG", "NEURON")
        (to / path.name).write_text(text)
        if path.name.startswith("test_"):
            names.append(f"openreg/{path.stem}")
    return names


@dataclass
class Run:
    """What one file did on one device: test -> passed, xfailed, skipped or failed, and why the list is short when it is."""

    outcomes: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    def cells(self) -> list[str]:
        counts = Counter(self.outcomes.values())
        return [str(n) for n in (len(self.outcomes), counts["passed"] + counts["xfailed"], counts["failed"], counts["skipped"])]


def environment(device: str) -> dict[str, str]:
    env = {**os.environ, "PYTORCH_TESTING_DEVICE_ONLY_FOR": "privateuse1" if device == "neuron" else "cpu"}
    env["PYTHONHASHSEED"] = "0"  # PyTorch makes tests from sets; a worker that replaces another must find the same list
    env.pop("PYTORCH_TESTING_DEVICE_EXCEPT_FOR", None)
    env.pop("PYTORCH_TESTING_DEVICE_FOR_CUSTOM", None)
    env.pop("PYTEST_ADDOPTS", None)
    if device == "neuron":
        # PyTorch compares with the first name until it has made one class, then with the second (common_device_type.py, 2.13).
        env["PYTORCH_TESTING_DEVICE_FOR_CUSTOM"] = "privateuse1,neuron"
    else:
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return env


def command(path: Path, scratch: Path, test_limit: float) -> list[str]:
    """pytest with one worker process, which is replaced when a test takes it down. PyTorch's conftest is for PyTorch's CI."""
    ini = scratch / "pytest.ini"
    ini.write_text("[pytest]\n")
    options = f"-q -n 1 --max-worker-restart=1000 --timeout={test_limit:g} --timeout-method=thread --tb=line --assert=plain".split()
    plugins = "-p no:warnings -p no:cacheprovider --noconftest".split()
    places = ["-c", str(ini), f"--rootdir={path.parent}", f"--junitxml={scratch / 'results.xml'}"]
    return [sys.executable, "-m", "pytest", *options, *plugins, *places, str(path)]


def read_results(xml: Path, stopped: bool = False) -> dict[str, str]:
    """Outcomes by ``Class.test``. A test has several entries when its teardown or a subtest fails as well.

    When the file was ``stopped``, the last entry is of the test that was running, and looks as if that had passed.
    """
    outcomes: dict[str, str] = {}
    test = ""
    for case in ElementTree.parse(xml).iter("testcase"):
        test = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            outcomes[test] = "failed"
        elif (skip := case.find("skipped")) is not None:
            outcomes.setdefault(test, "xfailed" if skip.get("type") == "pytest.xfail" else "skipped")
        else:
            outcomes.setdefault(test, "passed")
    if stopped and test:
        outcomes[test] = "failed"
    return outcomes


def run_file(path: Path, device: str, limit: float, test_limit: float) -> Run:
    """Runs one file on one device in its own session of processes; none is left behind."""
    if not path.is_file():
        return Run(problem="not in this checkout")
    problem = ""
    with tempfile.TemporaryDirectory() as name, open(Path(name) / "output", "w+") as output:
        scratch = Path(name)
        process = subprocess.Popen(
            command(path, scratch, test_limit),
            env=environment(device),
            cwd=path.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            problem = f"stopped after {limit:g} s"
            stop(process)
        finally:
            kill_session(process)
        try:
            outcomes = read_results(scratch / "results.xml", stopped=bool(problem))
        except (OSError, ElementTree.ParseError):
            outcomes = {}
        if not outcomes and not problem:
            output.seek(0)
            problem = "no tests: " + next((line for line in reversed(output.read().splitlines()) if line.strip()), "no output")
        return Run(outcomes, problem)


def stop(process: subprocess.Popen) -> None:
    """As Ctrl-C does, so that pytest writes its results; by force when it does not."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        kill_session(process)


def kill_session(process: subprocess.Popen) -> None:
    """Ends pytest's workers too, and what tests started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of them have ended
    process.wait()


def on_cpu(test: str) -> str:
    """The CPU's name of a test of ``neuron``: TestViewOpsNEURON.test_t_neuron_int8 is TestViewOpsCPU.test_t_cpu_int8."""
    cls, _, method = test.partition(".")
    return re.sub("(NEURON|PRIVATEUSE1)$", "CPU", cls) + "." + re.sub("_(neuron|privateuse1)(?=_|$)", "_cpu", method)


def short(runs: dict[str, Run]) -> list[str]:
    """The tests that the CPU passes, or fails as PyTorch expects, and ``neuron`` does not; skips count."""
    cpu, good = runs["cpu"].outcomes, ("passed", "xfailed")
    ours = {on_cpu(test): outcome for test, outcome in runs["neuron"].outcomes.items()}
    return [test for test, outcome in cpu.items() if outcome in good and ours.get(test) not in good]


def table_rows(results: dict[str, dict[str, Run]]) -> Iterator[list[str]]:
    yield ["file", *(f"{device} {what}" for device in DEVICES for what in ("run", "passed", "failed", "skipped")), "short of the CPU", ""]
    for name, runs in results.items():
        cells = [cell for device in DEVICES for cell in (runs[device].cells() if device in runs else ["-"] * 4)]
        problems = "; ".join(f"{device}: {run.problem}" for device, run in runs.items() if run.problem)
        yield [name, *cells, str(len(short(runs))) if "cpu" in runs else "-", problems]


def table(results: dict[str, dict[str, Run]]) -> str:
    rows = list(table_rows(results))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [[row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=False))] for row in rows]
    return "\n".join("  ".join([*line, row[-1]]).rstrip() for line, row in zip(lines, rows, strict=True))


def save(results: dict[str, dict[str, Run]], path: Path) -> None:
    content = {
        name: {"short": short(runs) if "cpu" in runs else None, **{device: vars(run) for device, run in runs.items()}}
        for name, runs in results.items()
    }
    path.write_text(json.dumps(content, indent=1))


def selected(wanted: list[str], openreg: list[str]) -> list[str]:
    """``wanted`` or all; ``openreg`` stands for all of openreg's files. Any other file of the checkout's test directory may be named."""
    names = [part for name in wanted or [*FILES, "openreg"] for part in (openreg if name == "openreg" else [name])]
    return list(dict.fromkeys(name.removesuffix(".py") for name in names))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream.checkout", description=__doc__.partition("\n\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of PyTorch at the tag of the version that is installed")
    parser.add_argument("--files", nargs="+", default=[], metavar="FILE", help=f"default: {' '.join(FILES)} openreg")
    parser.add_argument("--json", type=Path, help="write every test's outcome here")
    parser.add_argument("--limit", type=float, default=4 * 3600, help="seconds for one file on one device")
    parser.add_argument("--test-limit", type=float, default=300, help="seconds for one test")
    parser.add_argument("-n", "--workers", type=int, default=1, help="files at a time")
    options = parser.parse_args(arguments)
    checkout = options.checkout.resolve()
    try:
        check_version(checkout)
    except BadCheckout as error:
        parser.error(str(error))

    results: dict[str, dict[str, Run]] = {}
    with tempfile.TemporaryDirectory() as copies, ThreadPoolExecutor(options.workers) as pool:
        names = selected(options.files, copy_openreg(checkout, Path(copies) / "openreg"))

        def run(name: str, device: str) -> Run:
            root = Path(copies) if name.startswith("openreg/") else checkout / "test"
            return run_file(root / f"{name}.py", device, options.limit, options.test_limit)

        jobs = {(name, d): pool.submit(run, name, d) for name in names for d in DEVICES if d == "neuron" or not name.startswith("openreg/")}
        for (name, device), job in jobs.items():
            results.setdefault(name, {})[device] = job.result()
            print(f"{name} on {device}: {len(job.result().outcomes)} tests", file=sys.stderr, flush=True)
            if options.json:
                save(results, options.json)
    print(table(results))
    return int(any(run.problem for runs in results.values() for run in runs.values()))


if __name__ == "__main__":
    sys.exit(main())

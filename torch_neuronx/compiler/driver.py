"""Runs ``neuronx-cc``: bounded in number and in time, once for each program on a host, however many processes ask."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torch_neuronx.compiler.cache import Cache, Key
from torch_neuronx.compiler.errors import CompilerError, CompilerTimeout, error_of
from torch_neuronx.compiler.neff import read_header
from torch_neuronx.compiler.options import Options, cache_from_environment, find_compiler, from_environment

_REPORT_AFTER, _REPORT_EVERY = 10.0, 30.0  # seconds


@dataclass(frozen=True)
class Compiled:
    """A NEFF, and what it cost. ``compiled`` is False when it came from the cache; ``seconds``: time of the compiler, or 0."""

    neff: bytes
    key: Key
    compiled: bool
    seconds: float


# Programs compiled and taken from the cache by this process.
counters = {"compiles": 0, "hits": 0, "failures": 0}
_counting = threading.Lock()


def _count(what: str) -> None:
    with _counting:  # an addition is no single step, and compilations run on many threads
        counters[what] += 1


def _setting(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if value <= 0:
        raise CompilerError(f'{name}="{text}" is not understood: a number above 0')
    return value


@functools.cache
def compiler_version(path: Path, _stamp: float = 0) -> str:
    """What ``neuronx-cc --version`` says, the number alone."""
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"{path} --version does not answer: {error}") from error
    words = [word for word in (done.stdout + " " + done.stderr).split() if word[:1].isdigit() and "." in word]
    if done.returncode or not words:
        raise CompilerError(f"{path} --version gives no version (exit status {done.returncode}): {(done.stdout + done.stderr)[-500:]!r}")
    return words[0]


def compile_hlo(hlo: bytes, options: Options | None = None, name: str = "program", lines: Sequence[str | None] = ()) -> Compiled:
    """The NEFF of a serialized HloModuleProto, from the cache or from ``neuronx-cc``.

    Args:
        options: default: what the environment says.
        name: of the program, for messages.
        lines: Python line of each call of the Program, for errors.

    Raises:
        CompilerNotFound: there is no compiler, and the program is not in the cache of any compiler version known here.
        CompilerError: the compiler refuses the program; it names the NCC code, the operator, the Python line and what to do.
        CompilerTimeout: it took longer than TORCH_NEURONX_COMPILE_TIMEOUT seconds (default 3600).
    """
    options = options or from_environment()
    settings = cache_from_environment()
    compiler = find_compiler()
    key = _key(hlo, options, compiler)
    cache = Cache(settings)
    if not settings.enabled:
        with cache.workspace(key) as workspace:
            seconds = _run(compiler, hlo, options, workspace, name, lines)
            return Compiled((workspace / "model.neff").read_bytes(), key, True, seconds)
    found = cache.get(key)
    if found is None:
        return _compile_once(cache, key, compiler, hlo, options, name, lines)
    _count("hits")
    return Compiled(found, key, False, 0.0)


def _key(hlo: bytes, options: Options, compiler: Path) -> Key:
    from torch_neuronx.lowering.hlo import fingerprint

    return Key.of(fingerprint(hlo), options, compiler_version(compiler, compiler.stat().st_mtime))


def find_compiled(hlo: bytes, options: Options) -> Compiled | None:
    """The NEFF if the cache has it. Raises CompilerError when the compiler is known to refuse the program."""
    settings = cache_from_environment()
    if not settings.enabled:
        return None
    key = _key(hlo, options, find_compiler())
    found = Cache(settings).get(key)
    if found is None:
        return None
    _count("hits")
    return Compiled(found, key, False, 0.0)


def _compile_once(cache: Cache, key: Key, compiler: Path, hlo: bytes, options: Options, name: str, lines: Sequence[str | None]) -> Compiled:
    """With the entry's lock: another process may have built it meanwhile."""
    with ExitStack() as stack:
        with _waiting(f"another process compiles {name}"):
            stack.enter_context(cache.lock(key))
        found = cache.get(key)
        if found is not None:
            _count("hits")
            return Compiled(found, key, False, 0.0)
        with cache.workspace(key) as workspace:
            try:
                seconds = _run(compiler, hlo, options, workspace, name, lines)
            except CompilerError as error:
                if error.code is not None:
                    cache.publish_failure(key, error, options)
                raise
            neff = (workspace / "model.neff").read_bytes()
            cache.publish(key, workspace, hlo, options, seconds)
    return Compiled(neff, key, True, seconds)


def _run(compiler: Path, hlo: bytes, options: Options, workspace: Path, name: str, lines: Sequence[str | None]) -> float:
    """One run of the compiler in ``workspace``; writes model.neff there and gives the seconds."""
    source, output, log = workspace / "model.hlo_module.pb", workspace / "model.neff", workspace / "compiler.log"
    source.write_bytes(hlo)
    command = [str(compiler), "compile", source.name, *options.arguments(), f"--output={output.name}"]
    limit = _setting("TORCH_NEURONX_COMPILE_TIMEOUT", 3600)
    with ExitStack() as stack:
        with _waiting(f"waiting for a free compiler to compile {name}"):
            stack.enter_context(_slot(cache_from_environment().directory))
        stack.enter_context(_waiting(f"compiling {name} for {options.target}"))
        start = time.monotonic()
        with open(log, "wb") as sink:
            process = _start(command, workspace, sink)
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise CompilerTimeout(
                    f"neuronx-cc did not finish {name} within {limit:g} s. TORCH_NEURONX_COMPILE_TIMEOUT=<seconds> gives it longer; "
                    "-O1 in NEURON_CC_FLAGS, or a smaller program, makes it faster."
                ) from None
            finally:
                _end(process)
        seconds = time.monotonic() - start
    text = log.read_text(errors="replace")
    _count("compiles")
    if status != 0:
        _count("failures")
        raise error_of(text, status, name, _metadata(hlo), lines)
    try:
        read_header(output.read_bytes())
    except (OSError, ValueError) as error:
        raise CompilerError(f"neuronx-cc said that it compiled {name}, but its output is no NEFF: {error}", log=text) from error
    return seconds


# Compilers that run for this process; None once it ends, and no more are started.
_running: set[subprocess.Popen[bytes]] | None = set()
_running_lock = threading.Lock()


def _start(command: list[str], workspace: Path, sink: BinaryIO) -> subprocess.Popen[bytes]:
    with _running_lock:
        if _running is None:
            raise CompilerError("the process is ending")
        process = subprocess.Popen(command, cwd=workspace, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
        _running.add(process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """The compiler has children: the whole group goes, and nothing else, since the group is its own."""
    with _running_lock:
        if _running is not None:
            _running.discard(process)
    if process.poll() is None:
        _kill(process)
        process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def stop_compilers() -> None:
    """Ends the compilers that run for this process; none is started any more. For the end of the process."""
    global _running
    with _running_lock:
        ending, _running = _running or set(), None
        for process in ending:
            if process.returncode is None:  # not reaped yet, so that its number is still its own
                _kill(process)


def _metadata(hlo: bytes) -> dict[str, str]:
    from torch_neuronx.lowering.hlo import op_names

    return op_names(hlo)


def compile_jobs() -> int:
    """Compilers that may run at once on this host."""
    return int(_setting("TORCH_NEURONX_COMPILE_JOBS", max(1, (os.cpu_count() or 2) // 2)))


@contextmanager
def _slot(directory: Path) -> Iterator[None]:
    """One of the host's places for a running compiler: TORCH_NEURONX_COMPILE_JOBS, by default half of the cores.

    The places are locks in the cache folder, so that eight ranks do not start eight compilers each.
    """
    import filelock

    jobs = compile_jobs()
    folder = directory / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    pause = 0.01
    while True:
        for index in range(jobs):
            place = filelock.FileLock(str(folder / f"slot-{os.uname().nodename}-{index}.lock"))
            try:
                place.acquire(timeout=0)
            except filelock.Timeout:
                continue
            try:
                yield
            finally:
                place.release()
            return
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Says on stderr what is being waited for, once it takes long. TORCH_NEURONX_COMPILE_PROGRESS=0 keeps it quiet."""
    if os.environ.get("TORCH_NEURONX_COMPILE_PROGRESS", "1") == "0":
        yield
        return
    done = threading.Event()
    start = time.monotonic()

    def report() -> None:
        pause = _REPORT_AFTER
        while not done.wait(pause):
            print(f"torch_neuronx: {what}, {time.monotonic() - start:.0f} s so far", file=sys.stderr, flush=True)
            pause = _REPORT_EVERY

    thread = threading.Thread(target=report, name="neuron-compile-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1), thread_name_prefix="neuron-compile")


def compile_in_background(
    hlo: bytes, options: Options | None = None, name: str = "program", lines: Sequence[str | None] = ()
) -> Future[Compiled]:
    """:func:`compile_hlo` on a thread; its exceptions come with the future."""
    return _pool().submit(compile_hlo, hlo, options, name, lines)

"""Compiled programs on disk, shared by processes, ranks and users of one folder.

Note [Cache]
An entry is a folder ``neuronxcc-<version>/MODULE_<hlo>+<flags>/``, named by what decides its content: the HLO without its debug
information, the flags, the compiler's version. It appears by one rename, so it is there as a whole or not at all. ``model.json`` holds the
NEFF's size and digest, which every read checks: a damaged entry is a miss and is built again. Locks are ``flock``: they end with their
process, however it ends. Whoever holds an entry's lock may clear what a killed process left of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_neuronx.compiler.errors import CompilerError
from torch_neuronx.compiler.options import CacheSettings, Options

_NEFF, _RECORD, _HLO, _FLAGS, _FAILURE = "model.neff", "model.json", "model.hlo_module.pb", "compile_flags.json", "failure.json"
_BUILDING, _DOOMED = "building-", "doomed-"


@dataclass(frozen=True)
class Key:
    """Names an entry."""

    version: str
    module: str  # 32 hex digits of the HLO's fingerprint
    flags: str  # 8 hex digits

    @staticmethod
    def of(fingerprint: str, options: Options, version: str) -> Key:
        flags = hashlib.sha256(json.dumps(options.arguments()).encode()).hexdigest()[:8]
        return Key(version.replace("/", "_"), fingerprint[:32], flags)

    @property
    def name(self) -> str:
        return f"MODULE_{self.module}+{self.flags}"

    def __str__(self) -> str:
        return f"neuronxcc-{self.version}/{self.name}"


@dataclass(frozen=True)
class Entry:
    """An entry as ``list`` shows it. ``state``: ok, failed or corrupt; sizes in bytes, ``used`` in seconds since the epoch."""

    path: Path
    state: str
    size: int
    used: float
    record: dict[str, Any]


class Cache:
    """A cache folder. Every method may be called by many processes at once."""

    def __init__(self, settings: CacheSettings) -> None:
        self.settings, self.directory = settings, settings.directory

    # ---- reading ----

    def folder(self, key: Key) -> Path:
        return self.directory / f"neuronxcc-{key.version}" / key.name

    def get(self, key: Key) -> bytes | None:
        """The NEFF, whose digest has been checked; None when there is none or it is damaged.

        Raises CompilerError when this compilation is known to fail (unless failures are to be tried again).
        """
        folder = self.folder(key)
        failure = _read_json(folder / _FAILURE)
        if failure is not None and not self.settings.retry_failed:
            again = "Compile it again with --retry_failed_compilation in NEURON_CC_FLAGS."
            raise CompilerError(f"{failure['message']}\n(From the cache; {again})", failure.get("code"), log=failure.get("log", ""))
        record = _read_json(folder / _RECORD)
        try:
            neff = (folder / _NEFF).read_bytes()
        except OSError:
            return None
        if record is None or record.get("size") != len(neff) or record.get("sha256") != _digest(neff):
            return None
        self._touch(folder)
        return neff

    @staticmethod
    def _touch(folder: Path) -> None:
        try:
            os.utime(folder / _RECORD)
        except OSError:
            return  # a cache that may only be read, or an entry that was evicted just now

    # ---- writing ----

    @contextmanager
    def lock(self, key: Key, timeout: float = -1) -> Iterator[bool]:
        """Holds the entry; gives False when another process has it for ``timeout`` seconds (-1: waits)."""
        import filelock

        held = filelock.FileLock(self._lock_file(f"{key.version}-{key.name}"))
        try:
            held.acquire(timeout=timeout)
        except filelock.Timeout:
            yield False
            return
        try:
            self._clear_leftovers(key)
            yield True
        finally:
            held.release()

    def _lock_file(self, name: str) -> str:
        folder = self.directory / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder / f"{name}.lock")

    def _clear_leftovers(self, key: Key) -> None:
        for path in self.folder(key).parent.glob(f"{_BUILDING}{key.name}-*"):
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def workspace(self, key: Key) -> Iterator[Path]:
        """A folder to compile in, on the cache's own file system; it goes away if it is not published."""
        parent = self.folder(key).parent
        parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{key.name}-", dir=parent))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def publish(self, key: Key, workspace: Path, hlo: bytes, options: Options, seconds: float) -> None:
        """Makes the NEFF in ``workspace`` the entry, at once. With the entry's lock held."""
        neff = (workspace / _NEFF).read_bytes()
        record = {
            "size": len(neff),
            "sha256": _digest(neff),
            "seconds": round(seconds, 3),
            "target": options.target,
            "created": time.time(),
        }
        self._put(key, {_NEFF: neff, _HLO: hlo, _FLAGS: json.dumps(options.arguments()).encode(), _RECORD: json.dumps(record).encode()})
        self.prune()

    def publish_failure(self, key: Key, error: CompilerError, options: Options) -> None:
        """Remembers that the compiler refuses this program. With the entry's lock held."""
        failure = {"message": str(error), "code": error.code, "log": error.log[-20000:]}
        self._put(key, {_FAILURE: json.dumps(failure).encode(), _FLAGS: json.dumps(options.arguments()).encode()})

    def _put(self, key: Key, files: dict[str, bytes]) -> None:
        folder = self.folder(key)
        with self.workspace(key) as building:
            whole = building / "entry"
            whole.mkdir()
            for name, content in files.items():
                with open(whole / name, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            self._remove(folder)
            os.rename(whole, folder)

    def _remove(self, folder: Path) -> None:
        """Takes an entry away at once, then deletes it."""
        doomed = folder.parent / f"{_DOOMED}{folder.name}-{os.getpid()}-{time.monotonic_ns()}"
        try:
            os.rename(folder, doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed, ignore_errors=True)

    # ---- the whole folder ----

    def entries(self, check: bool = False) -> list[Entry]:
        """All entries, the least recently used first. ``check``: also compare digests."""
        found = [self._entry(path, check) for path in self.directory.glob("neuronxcc-*/MODULE_*")]
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.used)

    @staticmethod
    def _entry(folder: Path, check: bool) -> Entry | None:
        try:
            files = {path.name: path.stat() for path in folder.iterdir()}
        except OSError:
            return None  # evicted while we look
        size = sum(info.st_size for info in files.values())
        used = max((info.st_mtime for name, info in files.items() if name in (_RECORD, _FAILURE)), default=0.0)
        if _FAILURE in files:
            return Entry(folder, "failed", size, used, _read_json(folder / _FAILURE) or {})
        record = _read_json(folder / _RECORD)
        good = record is not None and _NEFF in files and files[_NEFF].st_size == record.get("size")
        if good and check and record is not None:
            good = _digest((folder / _NEFF).read_bytes()) == record.get("sha256")
        return Entry(folder, "ok" if good else "corrupt", size, used, record or {})

    def prune(self, max_bytes: int | None = None) -> list[Entry]:
        """Removes the least recently used entries until the rest fits, and what dead processes left; gives the removed entries."""
        limit = self.settings.max_bytes if max_bytes is None else max_bytes
        for path in self.directory.glob(f"neuronxcc-*/{_DOOMED}*"):
            shutil.rmtree(path, ignore_errors=True)
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        removed = []
        for entry in entries:
            if total <= limit:
                break
            self._remove(entry.path)
            total -= entry.size
            removed.append(entry)
        return removed

    def verify(self) -> list[Entry]:
        """Removes corrupt entries and gives them."""
        corrupt = [entry for entry in self.entries(check=True) if entry.state == "corrupt"]
        for entry in corrupt:
            self._remove(entry.path)
        return corrupt


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None

"""The names under which kernels import these modules: ``nki``, ``neuronxcc.nki``, ``neuron_dtypes``.

The packages in ``names/`` are found last on ``sys.path`` (by a line in a ``.pth`` file, or by :func:`offer` when PyTorch loads the
device), so a package of the vendor's wins. Each steps aside for the module it stands for; submodules follow through a finder, so that there
is one module object whatever name it was imported by.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

DIRECTORY = str(Path(__file__).parent / "nki" / "names")

_real: dict[str, str] = {}  # import name -> module
_MOVED = {"dtype": "language.dtypes"}  # submodules under another name


def offer() -> None:
    """Makes the names importable, after everything else that is. Costs nothing until one is imported."""
    if DIRECTORY not in sys.path:
        sys.path.append(DIRECTORY)


def take_place(name: str, real: str) -> None:
    """Called while the stand-in ``name`` is imported: from now on it is ``real``, and so are their submodules."""
    if not _real:
        sys.meta_path.insert(0, _Finder())
    _real[name] = real
    sys.modules[name] = importlib.import_module(real)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for name, real in _real.items():
            if fullname.startswith(name + "."):
                below = fullname[len(name) + 1 :]
                actual = f"{real}.{_MOVED.get(below, below)}"
                if importlib.util.find_spec(actual) is None:
                    return None
                return importlib.machinery.ModuleSpec(fullname, _Loader(actual))
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, actual: str) -> None:
        self.actual = actual

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.actual)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put the alias's in its place

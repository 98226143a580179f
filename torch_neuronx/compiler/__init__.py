"""HLO to NEFF: finds and runs ``neuronx-cc``, and keeps what it made.

``python -m torch_neuronx.compiler cache list|prune|verify`` looks after the cache, ``... precompile script.py --target trn2`` fills it on a
machine without a chip. docs/compiler.md lists the settings.
"""

from __future__ import annotations

from torch_neuronx.compiler.background import wait
from torch_neuronx.compiler.cache import Cache, Entry, Key
from torch_neuronx.compiler.driver import Compiled, compile_hlo, compile_in_background, counters
from torch_neuronx.compiler.errors import CompilerError, CompilerNotFound, CompilerTimeout
from torch_neuronx.compiler.options import Options, find_compiler, from_environment

__all__ = [
    "Cache",
    "Compiled",
    "CompilerError",
    "CompilerNotFound",
    "CompilerTimeout",
    "Entry",
    "Key",
    "Options",
    "compile_hlo",
    "compile_in_background",
    "counters",
    "find_compiler",
    "from_environment",
    "wait",
]

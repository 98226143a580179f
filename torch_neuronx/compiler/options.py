"""What neuronx-cc is told: where it is, for which chip, with which flags. All settings come from the environment, each in one place."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_neuronx.compiler.errors import CompilerError, CompilerNotFound

TARGETS = ("inf2", "trn1", "trn1n", "trn2", "trn3")
DEFAULT_LNC = {"trn2": 2, "trn3": 2}

# Flags of AWS's wrapper, which neuronx-cc itself refuses (NCC_EARG002): they steer the cache.
_WRAPPER_FLAGS = ("--cache_dir", "--no_cache", "--retry_failed_compilation", "--log_level")
_PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")


@dataclass(frozen=True)
class Options:
    """Flags of one compilation. Equal options and equal HLO give the same NEFF."""

    target: str
    lnc: int
    flags: tuple[str, ...] = ()  # the user's, after ours: of an option given twice the last one counts

    def arguments(self) -> list[str]:
        """The command line after ``neuronx-cc compile <file>``, but for ``--output``."""
        lnc = [f"--lnc={self.lnc}"] if self.target in DEFAULT_LNC else []
        return ["--framework=XLA", f"--target={self.target}", *lnc, *self.flags]


@dataclass(frozen=True)
class CacheSettings:
    """Where compiled programs are kept, and how long."""

    directory: Path
    enabled: bool = True
    retry_failed: bool = False
    max_bytes: int = 32 << 30


def from_environment(target: str | None = None, lnc: int | None = None, environment: Mapping[str, str] | None = None) -> Options:
    """Options as the environment wants them; ``target`` and ``lnc`` win over what it says.

    Reads NEURON_CC_FLAGS, NEURON_PLATFORM_TARGET_OVERRIDE, NEURON_LOGICAL_NC_CONFIG and TORCH_NEURONX_EMULATED_INSTANCE.

    Raises:
        CompilerError: an unknown target or LNC, or flags that a shell could not read.
    """
    env = os.environ if environment is None else environment
    flags, _ = split_flags(env.get("NEURON_CC_FLAGS", ""))
    chosen = target or _flag_value(flags, "--target") or env.get("NEURON_PLATFORM_TARGET_OVERRIDE") or _machine(env)
    if chosen not in TARGETS:
        raise CompilerError(f'unknown compile target "{chosen}": neuronx-cc has {", ".join(TARGETS)}. Set NEURON_PLATFORM_TARGET_OVERRIDE.')
    given = _flag_value(flags, "--lnc", "-lnc", "--logical-nc-config") or env.get("NEURON_LOGICAL_NC_CONFIG", "")
    if lnc is None:
        lnc = int(given) if given.isdecimal() else DEFAULT_LNC.get(chosen, 1)
    if lnc not in (1, 2):
        raise CompilerError(f"NEURON_LOGICAL_NC_CONFIG={lnc} is not understood: a logical core is 1 or 2 physical cores")
    flags = _without(flags, "--target", "--lnc", "-lnc", "--logical-nc-config", "--framework", "--output")
    return Options(chosen, lnc, tuple(flags))


def cache_from_environment(environment: Mapping[str, str] | None = None) -> CacheSettings:
    """Cache settings. The folder: --cache_dir in NEURON_CC_FLAGS, else TORCH_NEURONX_NEFF_CACHE_DIR, else NEURON_COMPILE_CACHE_URL, else
    the user's cache folder.

    Raises CompilerError for a cache on S3, and for a size that is none.
    """
    env = os.environ if environment is None else environment
    _, wrapper = split_flags(env.get("NEURON_CC_FLAGS", ""))
    place = (
        wrapper.get("--cache_dir") or env.get("TORCH_NEURONX_NEFF_CACHE_DIR") or env.get("NEURON_COMPILE_CACHE_URL") or _default_directory()
    )
    if place.startswith("s3://"):
        raise CompilerError(f"{place}: the compile cache must be a folder that all ranks see; mount the bucket, or name a local one")
    size = env.get("TORCH_NEURONX_NEFF_CACHE_SIZE", "32G")
    disabled = "--no_cache" in wrapper or env.get("TORCH_NEURONX_DISABLE_NEFF_CACHE", "0").lower() in ("1", "true", "yes", "on")
    directory = Path(place.removeprefix("file://")).expanduser()
    return CacheSettings(directory, not disabled, "--retry_failed_compilation" in wrapper, _bytes(size))


def _default_directory() -> str:
    import platformdirs

    return str(Path(platformdirs.user_cache_dir("torchneuron")) / "neff")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise CompilerError(f'TORCH_NEURONX_NEFF_CACHE_SIZE="{text}" is not understood: a number of bytes, alone or with K, M, G or T')
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()]


def split_flags(text: str) -> tuple[list[str], dict[str, str]]:
    """NEURON_CC_FLAGS as flags for neuronx-cc, and the wrapper's own by name ("" when it has no value)."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CompilerError(f"NEURON_CC_FLAGS cannot be read ({error}): {text!r}") from None
    flags: list[str] = []
    wrapper: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in _WRAPPER_FLAGS:
            flags.append(word)
        elif equals or name in ("--no_cache", "--retry_failed_compilation"):
            wrapper[name] = value
        else:
            wrapper[name] = next(rest, "")
    return flags, wrapper


def _flag_value(flags: list[str], *names: str) -> str:
    """The last value given to an option, as ``--name=value`` or ``--name value``."""
    found = ""
    for word, following in zip(flags, [*flags, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else following
    return found


def _without(flags: list[str], *names: str) -> list[str]:
    kept = []
    rest = iter(flags)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in names:
            kept.append(word)
        elif not equals:
            next(rest, None)
    return kept


def _machine(env: Mapping[str, str]) -> str:
    """The chip of this host, or the one that is emulated."""
    try:
        name = _PRODUCT_NAME.read_text().strip()
    except OSError:
        name = ""
    for target in sorted(TARGETS, key=len, reverse=True):
        if name.startswith(target):
            return target
    instance = env.get("TORCH_NEURONX_EMULATED_INSTANCE", "trn2.3xlarge")
    return "trn3" if instance.startswith("trn3") else "trn2"


def find_compiler(environment: Mapping[str, str] | None = None) -> Path:
    """Path of ``neuronx-cc``: beside the Python in use, then on PATH, then where the SDK puts it.

    Raises CompilerNotFound with the remedy.
    """
    import sys

    env = os.environ if environment is None else environment
    folders = [*env.get("PATH", os.defpath).split(os.pathsep), str(Path(sys.executable).parent), "/opt/aws/neuron/bin"]
    found = shutil.which("neuronx-cc", path=os.pathsep.join(folders))
    if found is None:
        raise CompilerNotFound(
            "neuronx-cc is not on this machine. Install AWS's compiler (pip install neuronx-cc --extra-index-url "
            "https://pip.repos.neuron.amazonaws.com), or put it on PATH; without it, programs run only on the emulated target."
        )
    return Path(found)

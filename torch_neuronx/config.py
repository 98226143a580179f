"""The environment variables that TorchNeuron reads, in one table. Imports nothing of PyTorch.

The C++ side (csrc/runtime/settings.cpp) reads most, once per process, and refuses bad values at the first use of the device; this table
is their documentation and what ``python -m torch_neuronx.diagnose`` checks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

INSTANCES = ("trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3", "trn3-gen1", "trn3-gen2")
DEFAULT_INSTANCE = INSTANCES[0]

_FLAGS = ("0", "1", "false", "true", "no", "yes", "off", "on")
_BYTES = re.compile(r"\d+([KMGT](i?B)?|[kmgt](i?B)?|B)?")
_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_ALLOCATOR = re.compile(r"(kMaxSplitSizeBytes|kMaxNonSplitRoundingBytes)=\d+(,(kMaxSplitSizeBytes|kMaxNonSplitRoundingBytes)=\d+)*")


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    accepted: str  # for people
    default: str
    meaning: str
    accepts: Callable[[str], bool]


def _word(*words: str) -> tuple[str, Callable[[str], bool]]:
    return ", ".join(words), lambda text: text in words


def _flag() -> tuple[str, Callable[[str], bool]]:
    return ", ".join(_FLAGS), lambda text: text.lower() in _FLAGS


def _integer(low: int, high: int) -> tuple[str, Callable[[str], bool]]:
    return f"whole numbers from {low} to {high}", lambda text: text.isdecimal() and low <= int(text) <= high


def _pattern(accepted: str, pattern: re.Pattern[str]) -> tuple[str, Callable[[str], bool]]:
    return accepted, lambda text: pattern.fullmatch(text) is not None


def _variable(name: str, rule: tuple[str, Callable[[str], bool]], default: str, meaning: str) -> Variable:
    accepted, accepts = rule
    return Variable(name, accepted, default, meaning, accepts)


_SIZE = _pattern("a number of bytes, alone or with K, M, G or T, as in 512M or 2G", _BYTES)

VARIABLES = (
    _variable(
        "TORCH_NEURONX_TARGET",
        _word("auto", "emulated", "trainium"),
        "auto",
        "where the device runs; auto: on a chip if there is one, else emulated",
    ),
    _variable("TORCH_NEURONX_EMULATED_INSTANCE", _word(*INSTANCES), DEFAULT_INSTANCE, "the machine that is emulated"),
    _variable(
        "NEURON_RT_VISIBLE_CORES",
        _pattern("core numbers and ranges, as in 0, 0-3 or 0,2", _CORES),
        "all",
        "logical cores of this process; wins over NEURON_RT_NUM_CORES",
    ),
    _variable("NEURON_RT_NUM_CORES", _integer(0, 1 << 16), "0", "number of logical cores of this process; 0: all"),
    _variable("NEURON_LOGICAL_NC_CONFIG", _word("1", "2"), "2", "physical cores behind a logical one (LNC)"),
    _variable("TORCH_NEURONX_FALLBACK", _word("error", "warn", "allow"), "warn", "what happens to a call that has no kernel on the device"),
    _variable("TORCH_NEURONX_GUARD", _flag(), "0", "make device memory inaccessible to the host, as on a chip (emulated only)"),
    _variable("NEURON_LAUNCH_BLOCKING", _flag(), "0", "wait for each call, so that an error is raised where it is made"),
    _variable("TORCH_NEURONX_CHECK_META", _flag(), "0", "compare each kernel's results with what was promised for them"),
    _variable("TORCH_NEURONX_ENABLE_STACK_TRACE", _flag(), "0", "record the Python line of each call, for error messages"),
    _variable("TORCH_NEURONX_HOST_MEMORY_LIMIT", _SIZE, "what the machine has", "host memory that emulated devices may use"),
    _variable("TORCH_NEURONX_HOST_MEMORY_RESERVE", _SIZE, "a share of the machine's", "host memory that emulated devices leave free"),
    _variable(
        "TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG",
        _pattern("kMaxSplitSizeBytes=<bytes>,kMaxNonSplitRoundingBytes=<bytes>", _ALLOCATOR),
        "split any block",
        "tuning of the caching allocator against fragmentation",
    ),
    _variable("TORCH_NEURONX_EAGER_CACHE_SIZE", _integer(1, 1 << 30), "16384", "Programs kept in the eager cache"),
    _variable(
        "NEURON_EAGER_MODEL_CACHE_SIZE", _integer(1, 1 << 30), "16384", "the same under AWS's name; TORCH_NEURONX_EAGER_CACHE_SIZE wins"
    ),
    _variable(
        "TORCH_NEURONX_VECTORS", _word("auto", "portable", "avx2", "avx512"), "auto", "vectors of the tile functions (emulated only)"
    ),
    _variable("TORCH_NEURONX_ADAPTIVE_EAGER", _flag(), "1", "Adaptive Eager: run repeated stretches of eager calls as one Program"),
    _variable("TORCH_NEURONX_ENABLE_CONCATENATION", _flag(), "1", "the same under AWS's name; TORCH_NEURONX_ADAPTIVE_EAGER wins"),
    _variable("TORCH_NEURONX_QUEUE_SIZE", _integer(1 << 10, 1 << 30), "131072", "64-bit words in the queue of a stream"),
    _variable("TORCH_NEURONX_STRICT", _word("trn1", "trn2", "trn3"), "off", "refuse what this chip would not run, in eager"),
    _variable("TORCH_NEURONX_EXECUTOR", _word("xla"), "kernels", "run eager calls by their lowering on XLA:CPU (emulated only; slow)"),
    _variable("TORCH_NEURONX_NEFF_CACHE_DIR", ("a folder", bool), "the user's cache folder", "where programs compiled for a chip are kept"),
    _variable("TORCH_NEURONX_NEFF_CACHE_SIZE", _SIZE, "32G", "size beyond which the least recently used compiled programs are removed"),
    _variable("TORCH_NEURONX_DISABLE_NEFF_CACHE", _flag(), "0", "compile every program for the chip anew"),
    _variable("TORCH_NEURONX_COMPILE_TIMEOUT", _integer(1, 1 << 20), "3600", "seconds that neuronx-cc may take for one program"),
    _variable("TORCH_NEURONX_COMPILE_JOBS", _integer(1, 1 << 10), "half of the cores", "neuronx-cc processes at once on this host"),
    _variable("TORCH_NEURONX_COMPILE_PROGRESS", _flag(), "1", "say on stderr which compilation takes long"),
    _variable(
        "TORCH_NEURONX_EMULATED_LINK_US",
        _integer(0, 60_000_000),
        "0",
        "modelled time of each collective in us, on top of what it takes here",
    ),
    _variable(
        "TORCH_NEURONX_EMULATED_HOST",
        _pattern("any text", re.compile(".*")),
        "the machine",
        "processes that name different hosts do not share memory",
    ),
)

# Names of AWS's torch-neuronx that have no meaning here (yet): accepted and ignored.
IGNORED = frozenset(
    """
    TORCH_NEURONX_DEBUG_DIR TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION
    TORCH_NEURONX_COMPLEX_DECOMPOSE TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY TORCH_NEURONX_RETAIN_DEVICE_MODE
    TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS TORCH_NEURONX_LOG_LEVEL
    TORCH_NEURONX_DYNAMO_BACKEND_ONLY TORCH_NEURONX_ENABLE_STABLEHLO TORCH_NEURONX_MLIR_ATEN_OPS
    TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR TORCH_NEURONX_HLO_CACHE_DIR
    TORCH_NEURONX_ENABLE_ASYNC_NRT TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD
    TORCH_NEURONX_ENABLE_PROLOGUE TORCH_NEURONX_ENABLE_NKI_SDPA TORCH_NEURONX_ATEN_GMM_ALIGN
    TORCH_NEURONX_EMBEDDING_BWD_NKI_THRESHOLD TORCH_NEURONX_DUMP TORCH_NEURONX_SPMD_DISABLE
    TORCH_NEURONX_METRICS_ENABLED TORCH_NEURONX_ENABLED_METRIC_TABLES TORCH_NEURONX_METRICS_DIR
    TORCH_NEURONX_ENABLE_HOST_CC
    """.split()
)


@dataclass(frozen=True)
class Finding:
    """Something to say about the environment."""

    fatal: bool  # the device refuses to open
    text: str


def refusal(name: str, environment: Mapping[str, str]) -> str | None:
    """What is wrong with the value of ``name``, one of VARIABLES; None when it is unset or accepted."""
    (variable,) = (item for item in VARIABLES if item.name == name)
    value = environment.get(name, "")
    if not value or variable.accepts(value):
        return None
    return f'{name}="{value}" is not understood: accepted values are {variable.accepted}.'


def check_environment(environment: Mapping[str, str]) -> list[Finding]:
    """What is wrong with the variables in ``environment``: refused values, and TORCH_NEURONX_* names that nothing reads."""
    findings = [Finding(True, text) for variable in VARIABLES if (text := refusal(variable.name, environment))]
    ignored = [f"{name} is accepted for compatibility and has no effect." for name in sorted(environment) if name in IGNORED]
    return findings + [Finding(False, text) for text in (*ignored, *unknown_names(environment))]


def unknown_names(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each TORCH_NEURONX_* name that nothing reads, with the nearest name that means something."""
    known = {variable.name for variable in VARIABLES}
    sentences = []
    for name in sorted(environment):
        if name.startswith("TORCH_NEURONX_") and name not in known | IGNORED:
            near = difflib.get_close_matches(name, known | IGNORED, n=1)
            sentences.append(f"{name} is read by nothing." + (f" Did you mean {near[0]}?" if near else ""))
    return sentences

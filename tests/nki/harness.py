"""One instruction in a kernel: tiles in, tiles out; and what the tests of instructions draw and compare with."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

BF16 = ml_dtypes.bfloat16
NUMPY = {
    "bfloat16": BF16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"]
INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
RNG = np.random.default_rng(7)
few = settings(max_examples=12, deadline=None)
shapes = st.tuples(st.sampled_from([1, 7, 32, 128]), st.integers(1, 70))


@pytest.fixture(autouse=True)
def newest_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """For modules that import it: the target that has every instruction."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")


def numpy_dtype(name: str) -> Any:
    return np.dtype(NUMPY.get(name, name))


def cast(values: Any, name: str) -> np.ndarray:
    """float32 to a dtype as the hardware does: integers round to nearest even and saturate."""
    values = np.asarray(values, np.float32)
    kind = numpy_dtype(name)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return np.clip(np.nan_to_num(np.rint(values.astype(np.float64)), nan=0.0), info.min, info.max).astype(kind)
    with np.errstate(over="ignore"):
        return values.astype(kind)


def normal(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return cast(RNG.standard_normal(shape), dtype)


def ints(*shape: int, low: int = 0, high: int = 100, dtype: str = "int32") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(numpy_dtype(dtype))


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


def run(body: Callable[..., Any], inputs: Sequence[np.ndarray], outputs: Sequence[tuple[Any, ...]], psum: Sequence[int] = ()) -> Any:
    """Loads the inputs to SBUF (those numbered in ``psum`` to PSUM), calls ``body(*output tiles, *input tiles)``, gives the output tiles.

    ``outputs`` are ``(shape, dtype)`` or ``(shape, dtype, region)``.
    """

    def kernel(*arrays):
        tiles = []
        for k, array in enumerate(arrays):
            tile = nl.load(array)
            if k in psum:
                moved = nl.ndarray(tile.shape, tile.dtype, buffer=nl.psum)
                nisa.tensor_copy(moved, tile)
                tile = moved
            tiles.append(tile)
        made = [nl.ndarray(shape, dtype, buffer=region[0] if region else nl.sbuf) for shape, dtype, *region in outputs]
        body(*made, *tiles)
        results = []
        for tile in made:
            out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
            nl.store(out, tile)
            results.append(out)
        return tuple(results)

    parameters = [inspect.Parameter(f"x{k}", inspect.Parameter.POSITIONAL_ONLY) for k in range(len(inputs))]
    kernel.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    got = nki.simulate(kernel)(*inputs)
    return got[0] if len(got) == 1 else got


def same(got: np.ndarray, expected: Any, rtol: float = 1e-6, atol: float = 1e-6) -> None:
    """Equal up to the last place of the dtype of ``got``."""
    loose = {"bfloat16": 2**-8, "float16": 2**-10, "float8_e4m3": 2**-3, "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2}.get(
        got.dtype.name, 0
    )
    np.testing.assert_allclose(
        got.astype(np.float64), np.asarray(expected).astype(np.float64), rtol=max(rtol, loose), atol=atol, equal_nan=True
    )


# The operators of two operands, in NumPy.
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "divide": np.divide,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
}

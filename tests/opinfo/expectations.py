"""What is known to differ from the CPU, row by row, each with its reason.

A variant that fails without a row, and a row whose variant passes, both fail the suite: a fixed bug takes its row away.
"""

from dataclasses import dataclass

ALL = ("float32", "float64", "bfloat16", "int64", "bool", "complex64")


@dataclass(frozen=True)
class Row:
    op: str  # OpInfo.full_name
    dtypes: tuple[str, ...]
    reason: str


EXPECTED_FAILURES: list[Row] = []

# Ops whose values nobody promises; sizes, strides and dtype are compared.
VALUES_ARE_UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})

# Ops whose tensor arguments, but for the first, PyTorch wants on the CPU whatever the device.
HOST_ARGUMENTS = frozenset({"tensor_split"})

# PyTorch 2.13's CPU kernels write past the end of such an out= tensor or leave it unwritten (tests/test_strided_out.py), so `neuron` is
# compared with what they write to a contiguous one.
STRIDED_OUT_BREAKS_THE_CPU = frozenset({"tril", "triu", "lu_unpack", "linalg.lu", "nn.functional.gelu"})


def reason(op: str, dtype: str) -> str | None:
    """Why this variant is expected to fail, or None."""
    return next((row.reason for row in EXPECTED_FAILURES if row.op == op and dtype in row.dtypes), None)

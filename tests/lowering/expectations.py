"""What is known not to lower, or to differ from PyTorch, row by row, each with its reason.

A variant that fails without a row, and a row whose variant passes, both fail the suite: a fixed bug takes its row away.
"""

ALL = ("float32", "bfloat16", "int32", "int64")
ROWS: dict[tuple[str, str], str] = {}


def reason(op: str, dtype: str) -> str | None:
    """Why this variant is expected to fail, or None."""
    return ROWS.get((op, dtype)) or ROWS.get((op, "all"))

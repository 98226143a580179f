"""The comparison of the kernel tests."""

from __future__ import annotations

import torch

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype | None = None, factor: float = 1.0) -> None:
    """Asserts that both agree within ``factor`` times the tolerance of ``dtype`` (that of ``result``), relative to the largest element."""
    assert result.shape == expected.shape
    expected = expected.to("cpu", torch.float32)
    tolerance = factor * TOLERANCE[result.dtype if dtype is None else dtype] * max(1e-3, float(expected.abs().max()))
    torch.testing.assert_close(result.to("cpu", torch.float32), expected, rtol=0, atol=tolerance)

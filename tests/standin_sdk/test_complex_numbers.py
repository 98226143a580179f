"""Complex numbers on the Trainium target, whose compiler refuses them, against the stand-in SDK. See conftest.py."""

import pytest

from tests.standin_sdk.conftest import Run


@pytest.mark.timeout(600)
def test_eager(on_chip: Run) -> None:
    on_chip("complex_numbers:eager", TORCH_NEURONX_FALLBACK="error", timeout=500)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["compiled", pytest.param("eager", marks=pytest.mark.full)])
def test_models(on_chip: Run, mode: str) -> None:
    on_chip("complex_numbers:models", mode, TORCH_NEURONX_FALLBACK="error", timeout=500)

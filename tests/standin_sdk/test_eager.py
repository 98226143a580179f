"""Eager on the Trainium target against the stand-in SDK, in both forms of the asynchronous functions, on both generations."""

import pytest

from tests.standin_sdk.conftest import Run


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("device", "runtime"), [("trn2", "2.34"), ("trn3", "2.30")])
def test_eager(on_chip: Run, device: str, runtime: str) -> None:
    """Launches are counted call by call, so there are no windows."""
    on_chip("eager:everything", device, device=device, runtime=runtime, timeout=500, TORCH_NEURONX_ADAPTIVE_EAGER="0")


def test_windows(on_chip: Run) -> None:
    on_chip("eager:windows", TORCH_NEURONX_ADAPTIVE_EAGER="1")


@pytest.mark.timeout(600)
def test_calls_on_the_host(on_chip: Run) -> None:
    on_chip("host_calls:everything", TORCH_NEURONX_FALLBACK="allow", timeout=500)

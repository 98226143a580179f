"""Buckets on the Trainium target, against the stand-in SDK: programs are counted. See conftest.py."""

import ast

import pytest

from tests.standin_sdk.conftest import Run


def _compiles(told: str) -> int:
    return int(ast.literal_eval(told.splitlines()[-1])["compiles"])


def test_a_program_for_each_bucket(on_chip: Run) -> None:
    """Lengths 3 to 8, forward and backward: buckets 4 and 8, and the gradient of the loss, which is made eagerly."""
    assert _compiles(on_chip("buckets:lengths", "3", "8", TORCH_NEURONX_DISABLE_NEFF_CACHE="1").stdout) <= 2 * 2 + 1


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_all_lengths_to_64(on_chip: Run) -> None:
    assert _compiles(on_chip("buckets:lengths", "2", "64", timeout=1000, TORCH_NEURONX_DISABLE_NEFF_CACHE="1").stdout) <= 2 * 6 + 1


def test_in_the_background(on_chip: Run) -> None:
    on_chip("buckets:background", TORCH_NEURONX_COMPILE="background", TORCH_NEURONX_FALLBACK="allow")

"""How an illegal kernel is written down, and the tiles that they use."""

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

from torch_neuronx.nki.errors import NkiValidationError

X = np.zeros((128, 512), np.float32)
CASES: list = []


def illegal(rule, target="trn2", error=NkiValidationError):
    """Registers the body of an illegal kernel; ``rule`` is a regular expression that the refusal must match."""

    def register(body):
        CASES.append(pytest.param(body, rule, target, error, id=body.__name__))
        return body

    return register


def tile(shape, dtype=nl.float32, buffer=nl.sbuf, value=0, **more):
    """A written tile."""
    made = nl.ndarray(shape, dtype, buffer=buffer, **more)
    nisa.memset(made, value)
    return made


def empty(shape, dtype=nl.float32, buffer=nl.sbuf, **more):
    return nl.ndarray(shape, dtype, buffer=buffer, **more)

"""Kernels that several modules launch."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def add_into(x, total):
    tile = nl.load(total)
    nisa.tensor_tensor(tile, tile, nl.load(x), nl.add)
    nl.store(total, tile)

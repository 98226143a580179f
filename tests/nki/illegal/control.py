"""Control."""

import nki.isa as nisa
import nki.language as nl

from tests.nki.illegal.cases import empty, illegal, tile


@illegal("writes the counter of a dynamic loop")
def writes_loop_counter(x):
    nl.fori_loop(0, 4, lambda i: nisa.register_move(i, 3) and None)


@illegal("a dynamic loop cannot lie inside nl.no_reorder")
def loop_in_no_reorder(x):
    with nl.no_reorder():
        nl.fori_loop(0, 4, lambda i: None)


@illegal("was made in the body of a dynamic loop and cannot be used outside")
def tensor_leaves_loop(x):
    kept = []

    def body(i):
        kept.append(tile((128, 8)))

    nl.fori_loop(0, 4, body)
    nisa.tensor_copy(tile((128, 8)), kept[0])


@illegal("it cannot decide an `if`", error=TypeError)
def register_in_if(x):
    if nisa.register_alloc(1):
        tile((128, 8))


@illegal("lie in different dynamic loops")
def edge_out_of_loop(x):
    kept = []

    def body(i):
        kept.append(nisa.memset(empty((128, 8)), 0))

    nl.fori_loop(0, 4, body)
    nisa.memset(empty((128, 8)), 0).depends_on(kept[0])


@illegal(r"cores must be \(0, 1\)")
def barrier_cores(x):
    nisa.core_barrier(x, (0,))


@illegal("unsupported dtype 'float64'|Unsupported dtype 'float64'", error=ValueError)
def wide_dtype(x):
    empty((128, 8), "float64")

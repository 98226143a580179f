"""DMA."""

import nki.isa as nisa
import nki.language as nl

from tests.nki.illegal.cases import empty, illegal, tile


@illegal("dma_copy requires src and dst to have the same number of elements")
def dma_sizes(x):
    nisa.dma_copy(empty((128, 256)), x)


@illegal("hwdge needs equal dtypes", error=ValueError)
def hwdge_casts(x):
    nisa.dma_copy(empty((128, 512), nl.bfloat16), x, dge_mode=nisa.dge_mode.hwdge)


@illegal("hwdge needs trn2", target="trn1")
def hwdge_on_trn1(x):
    nisa.dma_copy(empty((128, 512)), x, dge_mode=nisa.dge_mode.hwdge)


@illegal("with vector_offset needs dge_mode unknown or swdge")
def hwdge_gathers(x):
    rows = tile((128, 1), nl.int32)
    nisa.dma_copy(empty((128, 512)), x.ap([[512, 128], [1, 512]], vector_offset=rows), dge_mode=nisa.dge_mode.hwdge)


@illegal("engine goes with dge_mode hwdge only")
def dma_engine(x):
    nisa.dma_copy(empty((128, 512)), x, engine=nisa.engine.scalar)


@illegal("priority needs trn3")
def dma_priority(x):
    nisa.dma_copy(empty((128, 512)), x, priority=0)


@illegal("vector_offset needs a tensor in HBM")
def gather_from_sbuf(x):
    tile((128, 8)).ap([[8, 128], [1, 8]], vector_offset=tile((128, 1), nl.int32))


@illegal("is indirect already and cannot be indirected again")
def indirect_twice(x):
    rows = tile((128, 1), nl.int32)
    x.vector_select(0, rows).vector_select(0, rows)


@illegal("dst shape must be the transposed src shape")
def dma_transpose_shape(x):
    nisa.dma_transpose(empty((128, 512)), x)


@illegal("reduce_op may only be add")
def dma_compute_op(x):
    a = tile((128, 8))
    nisa.dma_compute(a, [a, tile((128, 8))], nl.maximum)


@illegal("unexpected keyword argument 'dst_rmw_op'", error=TypeError)
def removed_argument(x):
    nisa.dma_copy(empty((128, 512)), x, dst_rmw_op=nl.add)

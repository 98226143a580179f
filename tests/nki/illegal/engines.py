"""Engines."""

import nki.isa as nisa
import nki.language as nl

from tests.nki.illegal.cases import empty, illegal, tile


@illegal("data is in PSUM, which the GpSimd engine cannot access")
def gpsimd_and_psum(x):
    nisa.tensor_partition_reduce(tile((1, 8)), nl.add, tile((128, 8), buffer=nl.psum))


@illegal("src is in PSUM, which the DMA engines cannot access")
def dma_from_psum(x):
    nisa.dma_copy(empty((128, 8), buffer=nl.hbm), tile((128, 8), buffer=nl.psum))


@illegal("dst must be in PSUM, it is in sbuf")
def matmul_into_sbuf(x):
    nisa.nc_matmul(empty((128, 128)), tile((128, 128)), tile((128, 128)))


@illegal("moving must be in SBUF, it is in psum")
def matmul_from_psum(x):
    nisa.nc_matmul(empty((128, 128), buffer=nl.psum), tile((128, 128)), tile((128, 128), buffer=nl.psum))


@illegal("data must be in SBUF or PSUM, it is in private_hbm")
def compute_on_hbm(x):
    nisa.activation(tile((128, 512)), nl.exp, x)


@illegal("data1 and data2 are both in PSUM")
def two_psum_operands(x):
    nisa.tensor_tensor(tile((128, 8)), tile((128, 8), buffer=nl.psum), tile((128, 8), buffer=nl.psum), nl.add)


@illegal("cannot run on the tensor engine; it runs on vector, scalar, gpsimd")
def wrong_engine(x):
    nisa.tensor_copy(tile((128, 8)), tile((128, 8)), engine=nisa.engine.tensor)


@illegal("runs on the scalar engine from trn2 on; this kernel is traced for trn1", target="trn1")
def engine_of_a_later_target(x):
    nisa.tensor_copy(tile((128, 8)), tile((128, 8)), engine=nisa.engine.scalar)


@illegal("op=power runs on the gpsimd engine only")
def power_on_vector(x):
    nisa.tensor_tensor(tile((128, 8)), tile((128, 8)), tile((128, 8)), nl.power, engine=nisa.engine.vector)


@illegal("engine must be a member of nki.isa.engine", error=TypeError)
def engine_by_number(x):
    nisa.tensor_copy(tile((128, 8)), tile((128, 8)), engine=5)


@illegal("needs trn3 or newer; this kernel is traced for trn2")
def instruction_of_a_later_target(x):
    nisa.exponential(tile((128, 8)), tile((128, 8)))


@illegal("op=abs_max needs trn3")
def operator_of_a_later_target(x):
    nisa.tensor_tensor(tile((128, 8)), tile((128, 8)), tile((128, 8)), nl.abs_max)

"""Tensor engine."""

import nki.isa as nisa
import nki.language as nl

from tests.nki.illegal.cases import empty, illegal, tile


@illegal("nc_matmul stationary int8 not supported", error=ValueError)
def matmul_dtype(x):
    nisa.nc_matmul(empty((128, 128), buffer=nl.psum), tile((128, 128), nl.int8), tile((128, 128), nl.int8))


@illegal("float32 and tfloat32 go only with each other", error=ValueError)
def matmul_mixes_widths(x):
    nisa.nc_matmul(empty((128, 128), buffer=nl.psum), tile((128, 128)), tile((128, 128), nl.bfloat16))


@illegal("dst must be float32 on trn2, got bfloat16", error=ValueError)
def matmul_into_bfloat16(x):
    a = tile((128, 128), nl.bfloat16)
    nisa.nc_matmul(empty((128, 128), nl.bfloat16, nl.psum), a, a)


@illegal("float8_e4m3fn needs trn3", error=ValueError)
def matmul_of_ocp_float8(x):
    a = tile((128, 128), nl.float8_e4m3fn)
    nisa.nc_matmul(empty((128, 128), buffer=nl.psum), a, a)


@illegal("stationary free size 256 exceeds 128")
def stationary_size(x):
    nisa.nc_matmul(empty((128, 128), buffer=nl.psum), tile((128, 256)), tile((128, 128)))


@illegal("moving free size 1024 exceeds 512 on trn2")
def moving_size(x):
    nisa.nc_matmul(empty((128, 1024), buffer=nl.psum), tile((128, 128)), tile((128, 1024)))


@illegal(r"dst must be \[64, 128\]")
def matmul_dst_shape(x):
    nisa.nc_matmul(empty((128, 128), buffer=nl.psum), tile((128, 64)), tile((128, 128)))


@illegal("lies in more than one PSUM bank")
def matmul_across_banks(x):
    a = empty((128, 1024), buffer=nl.psum)
    nisa.nc_matmul(a[:, 256:768], tile((128, 128)), tile((128, 512)))


@illegal("double_row needs float8 operands", error=ValueError)
def double_row_dtype(x):
    a = tile((128, 2, 64), nl.bfloat16)
    nisa.nc_matmul(empty((64, 64), buffer=nl.psum), a, a, perf_mode="double_row")


@illegal(r"double_row needs stationary of shape \[P, 2, F\]")
def double_row_shape(x):
    a = tile((128, 64), nl.float8_e5m2)
    nisa.nc_matmul(empty((32, 32), buffer=nl.psum), a, a, perf_mode=nisa.matmul_perf_mode.double_row)


@illegal("needs both tile_position and tile_size")
def tile_without_size(x):
    nisa.nc_matmul(empty((32, 128), buffer=nl.psum), tile((32, 32)), tile((32, 128)), tile_position=(0, 0))


@illegal(r"Tensor engine transpose requires shape <= \[128,128\], got \[1,256\]")
def transpose_size(x):
    nisa.nc_transpose(empty((256, 1), buffer=nl.psum), tile((1, 256)), engine=nisa.engine.tensor)


@illegal(r"Vector engine transpose requires shape <= \[32,32\]")
def vector_transpose_size(x):
    nisa.nc_transpose(empty((64, 32)), tile((32, 64)), engine=nisa.engine.vector)

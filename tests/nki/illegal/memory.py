"""Memory."""

import nki.isa as nisa
import nki.language as nl

from tests.nki.illegal.cases import empty, illegal, tile


@illegal("SBUF is full: .* Largest:")
def sbuf_capacity(x):
    tiles = [tile((128, 8192)) for _ in range(8)]
    total = tile((128, 8192))
    for part in tiles:
        nisa.tensor_tensor(total, total, part, nl.add)


@illegal("PSUM is full")
def psum_capacity(x):
    tiles = [tile((128, 512), buffer=nl.psum) for _ in range(9)]
    for part in tiles:
        nisa.tensor_copy(tile((128, 512)), part)


@illegal("sbuf of trn2 has 229376")
def tile_larger_than_sbuf(x):
    empty((128, 60000))


@illegal("exceed the 16384 bytes of psum")
def psum_address(x):
    empty((128, 512), buffer=nl.psum, address=(0, 16384 - 1024))


@illegal("partitions 96 to 159 exceed maximum 128")
def address_partitions(x):
    empty((64, 4), address=(96, 0))


@illegal("byte address 2 is not a multiple of the size of float32")
def misaligned_address(x):
    empty((64, 4), address=(0, 2))


@illegal("address goes with nl.sbuf and nl.psum only")
def address_in_hbm(x):
    empty((64, 4), buffer=nl.hbm, address=(0, 0))


@illegal("overwritten through .* overlapping addresses")
def overlapping_addresses(x):
    a = tile((128, 64), address=(0, 0))
    tile((128, 64), address=(0, 128))
    nisa.tensor_copy(tile((128, 64)), a)


@illegal("reads uninitialised memory: .* was never written")
def uninitialised_read(x):
    nisa.tensor_copy(tile((128, 8)), empty((128, 8)))


@illegal("tensor_partition_reduce reads uninitialised memory: .* written only in part")
def partly_initialised_read(x):
    a = empty((128, 8))
    nisa.memset(a[:, 0:4], 0)
    nisa.tensor_partition_reduce(tile((1, 8)), nl.add, a)


@illegal("dma_copy reads uninitialised memory: .* written only in part")
def holes_in_a_result(x):
    a = empty((128, 8))
    nisa.memset(a[:, 0:4], 0)
    nisa.dma_copy(empty((128, 8), buffer=nl.hbm), a)


@illegal("tensor_partition_reduce reads uninitialised memory: b.* written only in part")
def holes_move_with_elements(x):
    a, scale = empty((128, 8)), empty((128, 1))
    b = nl.ndarray((128, 8), nl.float32, name="b")
    nisa.memset(a[:, 0:4], 0)
    nisa.memset(scale[0:64, :], 0)
    nisa.tensor_copy(b, a)  # edge tiles are computed whole
    nisa.activation(b, nl.exp, b)
    nisa.tensor_tensor(b, b, tile((128, 8)), nl.add)
    nisa.tensor_scalar(b, b, nl.multiply, scale)
    nisa.tensor_partition_reduce(tile((1, 4)), nl.add, b[0:64, 0:4])  # what was written
    nisa.tensor_partition_reduce(tile((1, 4)), nl.add, b[:, 0:4])


@illegal(r"dma_copy reads uninitialised memory: sums\[0; 1x128, 1x1\] was written only in part")
def holes_move_in_their_partition(x):
    a, sums = empty((128, 8)), nl.ndarray((128, 1), nl.float32, name="sums")
    nisa.memset(a[0:64, :], 0)
    nisa.memset(a[64:128, 0:4], 0)
    nisa.tensor_reduce(sums, nl.add, a, axis=1)
    nisa.dma_copy(empty((64, 1), buffer=nl.hbm), sums[0:64, :])
    nisa.dma_copy(empty((128, 1), buffer=nl.hbm), sums)


@illegal(r"nc_matmul reads uninitialised memory: t\d+\[32; .* written only in part")
def holes_move_with_partitions(x):
    a, turned = empty((64, 64)), empty((64, 64), buffer=nl.psum)
    nisa.memset(a[0:32, :], 0)
    nisa.nc_transpose(turned, a)
    b, shuffled = empty((64, 64)), empty((64, 64))
    nisa.tensor_copy(b, turned)  # its columns 32 to 63 are the holes
    nisa.nc_stream_shuffle(shuffled, b, [31 - k for k in range(32)])
    out = empty((64, 64), buffer=nl.psum)
    nisa.nc_matmul(out[0:32, :], shuffled[:, 0:32], tile((64, 64)))
    nisa.nc_matmul(out[0:32, :], shuffled[:, 32:64], tile((64, 64)))


@illegal("tensor_tensor reads uninitialised memory: .* written only in part")
def nothing_but_holes(x):
    a, b = empty((128, 8)), empty((128, 8))
    nisa.memset(a[:, 0:4], 0)
    nisa.memset(b[:, 4:8], 0)
    nisa.tensor_tensor(tile((128, 8)), a, b, nl.add)


@illegal("accumulates onto .* was never written: the result is undefined")
def accumulate_onto_nothing(x):
    nisa.nc_matmul(empty((128, 128), buffer=nl.psum), tile((128, 128)), tile((128, 128)), accumulate=True)


@illegal("buffer must be nl.sbuf", error=TypeError)
def buffer_by_string(x):
    empty((128, 8), buffer="sbuf")

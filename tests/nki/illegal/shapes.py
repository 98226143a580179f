"""Shapes and partitions."""

import nki.isa as nisa
import nki.language as nl

from tests.nki.illegal.cases import empty, illegal, tile


@illegal("tensor_tensor dst partition dimension 256 exceeds maximum 128")
def too_many_partitions(x):
    nisa.tensor_tensor(empty((256, 4)), empty((256, 4)), empty((256, 4)), nl.add)


@illegal("starts on partition 16; 32 partitions must start on 0, 32, 64 or 96")
def start_partition(x):
    nisa.tensor_copy(tile((32, 4)), tile((64, 4))[16:48])


@illegal("starts on partition 32; 64 partitions must start on 0 or 64")
def start_partition_of_halves(x):
    nisa.tensor_copy(tile((64, 4)), tile((128, 4))[32:96])


@illegal("at least 2 dimensions")
def one_dimension(x):
    empty((128,))


@illegal(r"shape must be a tuple of positive integers, got \(0, 32\)")
def empty_shape(x):
    empty((0, 32))


@illegal(r"Out-of-bound access .* index range \[96,127\] exceed dimension size of 100")
def slice_out_of_bounds(x):
    tile((100, 4))[96:128]


@illegal("Out-of-bound access: dma_copy src")
def pattern_out_of_bounds(x):
    nisa.dma_copy(empty((128, 512)), x.ap([[512, 128], [1, 512]], offset=8))


@illegal("leaves the partition of 64 elements")
def pattern_leaves_partition(x):
    nisa.tensor_copy(tile((64, 96)), tile((128, 64)).ap([[64, 64], [1, 96]]))


@illegal("first stride of an on-chip pattern is the free size 64")
def partition_stride(x):
    tile((128, 64)).ap([[32, 128], [1, 16]])


@illegal("has 32 elements, .* has not")
def reshape_count(x):
    tile((2, 16)).reshape((2, 17))


@illegal("keeps its partition dimension")
def reshape_partitions(x):
    tile((32, 4)).reshape((16, 8))


@illegal("partition dimension stays first")
def permute_partitions(x):
    tile((32, 4)).permute((1, 0))


@illegal("broadcast: not on the partition dimension")
def broadcast_partitions(x):
    tile((1, 4)).broadcast(0, 32)


@illegal("broadcast: dimension 1 has size 4, not 1")
def broadcast_wide(x):
    tile((32, 4)).broadcast(1, 8)


@illegal("walks 5 free dimensions; instructions have at most 4")
def pattern_depth(x):
    a = tile((32, 1024))
    nisa.tensor_copy(tile((32, 32)), a.ap([[1024, 32], [512, 2], [128, 2], [32, 2], [8, 2], [2, 2]]))


@illegal("free size 5000 exceeds 4096 elements in psum")
def psum_free_size(x):
    nisa.tensor_copy(tile((32, 5000), nl.uint8), empty((32, 5000), nl.uint8, nl.psum))


@illegal("needs equal elements per partition")
def free_sizes_differ(x):
    nisa.tensor_tensor(tile((32, 8)), tile((32, 8)), tile((32, 4)), nl.add)


@illegal("needs equal partition counts")
def partitions_differ(x):
    nisa.tensor_copy(tile((32, 8)), tile((64, 8)))

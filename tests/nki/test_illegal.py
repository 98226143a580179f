"""Kernels that the hardware or its compiler would refuse: each is refused here, with its own line and the rule."""

import re
from pathlib import Path

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

from torch_neuronx.nki.errors import NkiValidationError

HERE = str(Path(__file__))
Refused = NkiValidationError
X = np.zeros((128, 512), np.float32)


def tile(shape, dtype=nl.float32, buffer=nl.sbuf, value=0, **more):
    """A written tile."""
    made = nl.ndarray(shape, dtype, buffer=buffer, **more)
    nisa.memset(made, value)
    return made


def empty(shape, dtype=nl.float32, buffer=nl.sbuf, **more):
    return nl.ndarray(shape, dtype, buffer=buffer, **more)


CASES: list = []


def illegal(rule, target="trn2", error=Refused):
    """Registers the body of an illegal kernel; ``rule`` is a regular expression that the refusal must match."""

    def register(body):
        CASES.append(pytest.param(body, rule, target, error, id=body.__name__))
        return body

    return register


# Shapes and partitions.


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


# Memory.


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


# Engines.


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


# Tensor engine.


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


# Vector, Scalar and GpSimd engines.


@illegal("cannot reduce the partition dimension")
def reduce_partitions(x):
    nisa.tensor_reduce(tile((1, 8)), nl.add, tile((128, 8)), axis=0)


@illegal("axis must be the last free dimensions")
def reduce_inner_axis(x):
    nisa.tensor_reduce(tile((128, 8)), nl.add, tile((128, 4, 8)), axis=1)


@illegal("Unknown reduction operator")
def reduction_operator(x):
    nisa.tensor_reduce(tile((128, 1)), nl.power, tile((128, 8)), axis=1)


@illegal("operand0 must be float32, got bfloat16", error=ValueError)
def vector_operand_dtype(x):
    nisa.tensor_scalar(tile((128, 8)), tile((128, 8)), nl.add, tile((128, 1), nl.bfloat16))


@illegal(r"operand0 must be a number or a \[P, 1\] tile")
def vector_operand_shape(x):
    nisa.tensor_scalar(tile((128, 8)), tile((128, 8)), nl.add, tile((128, 2)))


@illegal("cannot mix bitwise and arithmetic operators")
def mixed_operators(x):
    nisa.tensor_scalar(tile((128, 8), nl.int32), tile((128, 8), nl.int32), nl.bitwise_and, 3, op1=nl.add, operand1=1)


@illegal("bitwise operators need integer dtypes", error=ValueError)
def bitwise_on_floats(x):
    nisa.tensor_tensor(tile((128, 8)), tile((128, 8)), tile((128, 8)), nl.bitwise_or)


@illegal("op=add is no activation function")
def activation_function(x):
    nisa.activation(tile((128, 8)), nl.add, tile((128, 8)))


@illegal("scale must be float32, got bfloat16", error=ValueError)
def activation_scale(x):
    nisa.activation(tile((128, 8)), nl.exp, tile((128, 8)), scale=tile((128, 1), nl.bfloat16))


@illegal("a scalar bias needs trn2", target="trn1")
def scalar_bias(x):
    nisa.activation(tile((128, 8)), nl.exp, tile((128, 8)), bias=1.0)


@illegal("predicate float32 not supported", error=ValueError)
def predicate_dtype(x):
    nisa.tensor_copy_predicated(tile((128, 8)), tile((128, 8)), tile((128, 8)))


@illegal("value 1.5 is no integer, dst is int32", error=ValueError)
def memset_kind(x):
    tile((128, 8), nl.int32, value=1.5)


@illegal("float8_e4m3fn_x4 sets 0 only", target="trn3")
def memset_packed(x):
    tile((128, 8), nl.float8_e4m3fn_x4, value=1)


@illegal("shuffle_mask has 32 entries")
def shuffle_mask(x):
    nisa.nc_stream_shuffle(tile((128, 8)), tile((128, 8)), [0] * 31)


@illegal("data must have 1 to 512 elements per partition, got 600")
def bn_stats_size(x):
    nisa.bn_stats(empty((128, 6)), tile((128, 600)))


@illegal("src must have 8 to 16384 elements per partition, got 4")
def max8_size(x):
    nisa.max8(empty((128, 8)), tile((128, 4)))


@illegal("index float32 not supported", error=ValueError)
def gather_index_dtype(x):
    nisa.local_gather(empty((16, 16)), tile((16, 64)), tile((16, 1)))


@illegal("pattern .* gives 4 elements per partition, dst has 8")
def iota_pattern(x):
    nisa.iota(empty((128, 8), nl.int32), [[1, 4]])


@illegal("on_false_value must be -3.4028235e38")
def range_select_fill(x):
    one = tile((128, 1))
    nisa.range_select(empty((128, 8)), tile((128, 8)), nl.less, nl.less, one, one, on_false_value=0.0)


@illegal("reduce_init is needed with, and only with, reduce_cmd load_reduce")
def load_without_value(x):
    nisa.tensor_scalar_reduce(
        empty((128, 8)), tile((128, 8)), nl.add, 1.0, nl.add, empty((128, 1)), reduce_cmd=nisa.reduce_cmd.load_reduce
    )  # fmt: skip


@illegal("reduce_cmd must be a member of nki.isa.reduce_cmd", error=TypeError)
def enum_by_number(x):
    nisa.activation(tile((128, 8)), nl.exp, tile((128, 8)), reduce_cmd=3)


@illegal("src partitions must be a multiple of 32", target="trn3")
def quantise_partitions(x):
    nisa.quantize_mx(empty((16, 8), nl.float8_e4m3fn_x4), tile((16, 32), nl.bfloat16), empty((16, 8), nl.uint8))


# DMA.


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


# Control.


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


@pytest.mark.parametrize("body, rule, target, error", CASES)
def test_refused(body, rule, target, error, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)

    def kernel(x):
        out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        body(x)
        nl.store(out, tile((1, 1)))
        return out

    with pytest.raises(error, match=rule) as refusal:
        nki.simulate(kernel)(X)
    assert re.search(rf"{re.escape(HERE)}:\d+: |Unsupported dtype", str(refusal.value)), "the refusal names the kernel's line"


def test_there_are_enough_kinds():
    assert len(CASES) >= 80

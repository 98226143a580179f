"""Vector, Scalar and GpSimd engines."""

import nki.isa as nisa
import nki.language as nl

from tests.nki.illegal.cases import empty, illegal, tile


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

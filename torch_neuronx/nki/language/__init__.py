# ruff: noqa: F401
"""``nki.language``: tiles, loops, and functions that lower onto ``nki.isa``."""

from torch_neuronx.nki.errors import unknown_name as _unknown_name
from torch_neuronx.nki.language._control import (
    NKIObject,
    affine_range,
    device_print,
    ds,
    dynamic_range,
    fori_loop,
    no_reorder,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    static_range,
    while_loop,
)
from torch_neuronx.nki.language._memory import (
    broadcast_to,
    empty_like,
    expand_dims,
    full,
    gather_flattened,
    hbm,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    load,
    load_transpose2d,
    matmul,
    ndarray,
    ones,
    private_hbm,
    psum,
    rand,
    random_seed,
    sbuf,
    shared_constant,
    shared_hbm,
    shared_identity_matrix,
    static_cast,
    store,
    tile_size,
    transpose,
    zeros,
    zeros_like,
)
from torch_neuronx.nki.language._ops import *  # noqa: F403
from torch_neuronx.nki.memory import MemoryRegion
from torch_neuronx.nki.tensor import NkiTensor

DType = str
bool_ = bool = "bool"
int8, int16, int32 = "int8", "int16", "int32"
uint8, uint16, uint32 = "uint8", "uint16", "uint32"
float16, bfloat16, float32, tfloat32 = "float16", "bfloat16", "float32", "tfloat32"
float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu = "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"
float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4 = "float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4"


def __getattr__(name: str) -> object:
    raise _unknown_name(__name__, name, "torch_neuronx.nki.isa")

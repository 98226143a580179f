"""Kernels that are refused for what only a whole kernel, or its data, shows."""

import re
import warnings

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from nki.collectives import ReplicaGroup

from tests.nki.illegal.cases import X, empty, tile
from torch_neuronx.nki.errors import NkiValidationError, NkiWarning

Refused = NkiValidationError


def refuses(kernel, *args, match, error=Refused, target="trn2"):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=match):
        patch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        kernel(*args)


def test_returned_tensors_are_shared():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
        nisa.dma_copy(out, x)
        return out

    refuses(kernel, X, match=r"which is in private_hbm; returned tensors must be in nl.shared_hbm")


def test_outputs_are_written():
    @nki.jit
    def kernel(x):
        return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

    refuses(kernel, X, match="was never written")


def test_float64_arguments():
    @nki.jit
    def kernel(x):
        return x

    refuses(kernel, X.astype(np.float64), match="Unsupported dtype 'float64'. Convert it to float32", error=ValueError)


def test_grid_of_three_cores():
    @nki.jit
    def kernel(x):
        return x

    refuses(lambda x: kernel[3](x), X, match="1 or 2 physical cores")


@nki.jit
def racing(x, with_barrier=False):
    out = nl.ndarray((2, 128, 8), nl.float32, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    mine = nl.load(x[:, 0:8])
    nl.store(out[me], mine)
    if with_barrier:
        nisa.core_barrier(out, (0, 1))
    other = nl.load(out[1 - me])
    nisa.tensor_tensor(other, other, mine, nl.add)
    result = nl.ndarray((2, 128, 8), nl.float32, buffer=nl.shared_hbm)
    nl.store(result[me], other)
    return result


def test_race_between_cores():
    refuses(racing[2], X, match="race between cores: core 1 reads .* which core 0 writes")
    x = np.random.rand(128, 512).astype(np.float32)
    np.testing.assert_allclose(racing[2](x, True)[1], 2 * x[:, :8])


def test_cores_that_synchronise_differently():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            nisa.core_barrier(out, (0, 1))
            nl.store(out, tile((1, 1)))
        return out

    refuses(kernel[2], X, match="synchronise a different number of times")


@nki.jit
def gathers(x, rows, skip=False):
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    index, data = nl.load(rows), tile((128, 512), value=7)
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
    nisa.dma_copy(data, x.ap([[512, 128], [1, 512]], vector_offset=index), oob_mode=mode)
    nl.store(out, data)
    return out


def test_row_indices_out_of_range():
    rows = np.arange(128, dtype=np.int32)[:, None]
    rows[5] = 128
    refuses(gathers, X, rows, match="Out-of-bound access: .* row index 128 of 128 rows")
    assert (gathers(X, rows, skip=True)[5] == 7).all()


def test_rows_that_add_to_one_address():
    @nki.jit
    def kernel(x, rows):
        index, data = nl.load(rows), tile((128, 512), value=1)
        place = x.ap([[512, 128], [1, 512]], vector_offset=index)
        nisa.dma_compute(place, [place, data], nl.add)

    refuses(kernel, X.copy(), np.zeros((128, 1), np.int32), match="the sums would race")


def test_dynamic_offset_out_of_range():
    @nki.jit
    def kernel(x, start):
        out = nl.ndarray((64, 512), nl.float32, buffer=nl.shared_hbm)
        data = empty((64, 512))
        nisa.dma_copy(data, x.ap([[512, 64], [1, 512]], scalar_offset=nl.load(start)))
        nl.store(out, data)
        return out

    refuses(kernel, X, np.array([[65]], np.int32), match="Out-of-bound access: .* dynamic offset 65")
    assert kernel(X, np.array([[64]], np.int32)).shape == (64, 512)


def test_overlapping_rank_lists():
    with pytest.raises(ValueError, match="must not overlap"):
        ReplicaGroup([[0, 1], [1, 2]])


def test_instructions_outside_kernels():
    with pytest.raises(Refused, match="was called outside a kernel"):
        nl.ndarray((128, 8), nl.float32)


def test_warnings_instead(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "warn")

    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, empty((128, 8)))
        return out

    with pytest.warns(nki.NkiWarning, match="uninitialised"):
        assert np.isnan(kernel(X)).all()


# What a beginner writes. The errors begin with the kernel's line.

WRITTEN_AS_PYTHON = {
    "if x > 0": (
        lambda x, y: 1 if x[0, 0] > 0 else 2,
        TypeError,
        r"x: no Python `>` on tensors; nl\.greater.*cannot decide an `if`.*nl\.where",
    ),
    "if x <= 0": (lambda x, y: 1 if x[0, 0] <= 0 else 2, TypeError, r"no Python `<=` on tensors; nl\.less_equal"),
    "x + 1": (lambda x, y: x + 1, TypeError, r"no Python `\+` on tensors; use nl\.add\(x, y\)"),
    "2 * x": (lambda x, y: 2 * x, TypeError, r"no Python `\*` on tensors; use nl\.multiply"),
    "float(x)": (lambda x, y: float(x[0, 0]), TypeError, "no Python float can be made of it: what a tensor holds is not known"),
    "a misspelt instruction": (
        lambda x, y: nisa.tensor_cpy(x, x),
        AttributeError,
        r"nki\.isa has no 'tensor_cpy'\. Did you mean tensor_copy",
    ),
    "a misspelt function": (lambda x, y: nl.laod(x), AttributeError, r"nki\.language has no 'laod'\. Did you mean load\?"),
    "a function of the other module": (
        lambda x, y: nl.tensor_copy(x, x),
        AttributeError,
        r"nki\.language has no 'tensor_copy'; nki\.isa has",
    ),
    "None.shape": (
        lambda x, y: y.shape,
        TypeError,
        r"has no attribute 'shape'\. <lambda> was called with None for y: pass an array, or let",
    ),
    "load(None)": (lambda x, y: nl.load(y), TypeError, r"<lambda> was called with None for y.*`if y is not None`"),
    "an instruction on None": (lambda x, y: nisa.dma_copy(empty((128, 512)), y), TypeError, "dma_copy src must be a tensor, got None"),
}


@pytest.mark.parametrize("name", WRITTEN_AS_PYTHON)
def test_what_is_written_as_python(name):
    body, error, text = WRITTEN_AS_PYTHON[name]
    line = f"{body.__code__.co_filename}:{body.__code__.co_firstlineno}: "
    refuses(nki.jit(body), X, None, match=f"^{re.escape(line)}.*{text}", error=error)


def test_an_attribute_error_of_the_kernel_s_own_is_left_alone():
    refuses(nki.jit(lambda x, y: x.shapes), X, None, match="^'NkiTensor' object has no attribute 'shapes'$", error=AttributeError)


@pytest.mark.parametrize(("module", "name"), [(nki, "jitt"), (nisa, "engin"), (nl, "float3")])
def test_misspelt_outside_of_a_kernel(module, name):
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=rf"^nki[.a-z]* has no '{name}'\. Did you mean "):
        getattr(module, name)


def test_a_dtype_beside_a_destination_is_of_older_releases():
    def copy(asked):
        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            tile = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=nl.load(x), dtype=asked)
            nisa.dma_copy(dst=out, src=tile)
            return out

        return kernel

    x = np.full((4, 4), 1.001, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(copy(nl.float32)(x), x)
    with pytest.warns(
        NkiWarning, match=r"test_illegal_kernels.py:\d+: tensor_copy\(\) rounds to the dtype of dst, float32; dtype=bfloat16"
    ):
        np.testing.assert_array_equal(copy(nl.bfloat16)(x), x)


def half_written(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.dma_copy(dst=out[:64], src=tile[:64])
    nisa.dma_copy(dst=out[64:, :100], src=tile[64:, :100])
    return out


def test_an_output_that_is_written_in_part(monkeypatch):
    """On a chip the rest shows whatever HBM held; some kernels leave padding so, hence it is no error."""
    rule = r"half_written returns \S+: 26368 of its 65536 elements were never written, the first of them \[64, 100\]"
    with pytest.warns(NkiWarning, match=r"test_illegal_kernels.py:\d+: " + rule):
        found = nki.simulate(half_written)(X)
    assert np.isnan(found).sum() == 26368 and np.isnan(found[64:, 100:]).all()
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nki.simulate(half_written)(X)


def test_overwritten_memory_that_was_written_again():
    """Of a tensor that another one has overwritten, the part that was written again since may be read."""

    def kernel(x, rows, columns):
        a = tile((128, 64), address=(0, 0), value=1.0)
        tile((128, 64), address=(0, 128), value=2.0)  # the second half of each partition of `a`
        nisa.memset(a[0:64, 32:64], 3.0)
        out = nl.ndarray((rows.stop - rows.start, columns.stop - columns.start), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(a[rows, columns]))
        return out

    run = nki.simulate(kernel)
    assert (run(X, slice(0, 64), slice(32, 64)) == 3).all()
    assert (run(X, slice(0, 128), slice(0, 32)) == 1).all()
    with pytest.raises(Refused, match="overlapping addresses"):
        run(X, slice(64, 128), slice(32, 64))

"""The front end for kernels of beta 1 (``neuronxcc.nki``): instructions that return tiles, masks, index grids, grids of programs."""

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest
import torch

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@nki.jit
def add_tiles(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    rows = nl.program_id(0) * 128 + nl.arange(128)[:, None]
    columns = nl.program_id(1) * 64 + nl.arange(64)[None, :]
    inside = (rows < a.shape[0]) & (columns < a.shape[1])
    tile = nl.load(a[rows, columns], mask=inside) + nl.load(b[rows, columns], mask=inside)
    nl.store(out[rows, columns], value=tile, mask=inside)
    return out


@pytest.mark.parametrize("shape", [(256, 128), (200, 100)])
def test_grid_of_programs_with_masks(shape):
    a, b = normal(*shape), normal(*shape)
    np.testing.assert_array_equal(nki.simulate_kernel(add_tiles[2, 2], a, b), a + b)


@nki.jit
def product(lhs, rhs):
    """``lhs @ rhs``: the transposed left operand lies in PSUM, and beta 1's compiler moves it to where a product can read it."""
    out = nl.ndarray((lhs.shape[0], rhs.shape[1]), dtype=lhs.dtype, buffer=nl.shared_hbm)
    total = nl.zeros((nl.par_dim(lhs.shape[0]), rhs.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for k in nl.affine_range(lhs.shape[1] // 128):
        left = nl.load(lhs[:, nl.ds(k * 128, 128)])
        right = nl.load(rhs[nl.ds(k * 128, 128), :])
        total[...] += nisa.nc_matmul(nisa.nc_transpose(left), right)
    nl.store(out, value=total)
    return out


def test_products_of_transposes_accumulate():
    lhs, rhs = normal(64, 256), normal(256, 96)
    np.testing.assert_allclose(nki.simulate_kernel(product, lhs, rhs), lhs @ rhs, rtol=1e-4, atol=1e-4)


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i, j = nl.mgrid[0 : x.shape[0], 0 : x.shape[1]]
    tile = nl.load(x[i, j])
    exp = nl.exp(tile - nl.max(tile, axis=[1], keepdims=True))
    nl.store(out[i, j], exp / nl.sum(exp, axis=[1], keepdims=True))
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_on_tiles(dtype):
    x = torch.randn(96, 200, dtype=dtype, device="neuron")
    torch.testing.assert_close(softmax(x), torch.softmax(x.float(), -1).to(dtype), rtol=2e-2, atol=1e-3)


def test_a_product_that_its_mask_leaves_out_adds_nothing():
    @nki.jit
    def lower_blocks(a, b):
        out = nl.ndarray((4, 64, b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
        for q in nl.affine_range(4):
            total = nl.zeros((nl.par_dim(64), b.shape[1]), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(4):
                keys = nisa.nc_transpose(nl.load(a[q, nl.ds(k * 64, 64), :]), mask=(q >= k))
                total += nisa.nc_matmul(keys, nl.load(b[nl.ds(k * 64, 64), :]), mask=(q >= k))
            nl.store(out[q, :, :], total)
        return out

    a, b = normal(4, 256, 64), normal(256, 32)
    blocks = np.einsum("qkij,kjn->qkin", a.reshape(4, 4, 64, 64), b.reshape(4, 64, 32))
    expected = np.stack([blocks[q, : q + 1].sum(0) for q in range(4)])
    np.testing.assert_allclose(nki.simulate_kernel(lower_blocks, a, b), expected, rtol=1e-4, atol=1e-4)


def test_a_masked_reduction_keeps_its_dimensions():
    @nki.jit
    def shifted(x: nki.tensor) -> nki.tensor:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        row, column = nl.arange(128)[:, None], nl.arange(x.shape[1])[None, :]
        for i in nl.affine_range(2):
            inside = i * 128 + row < x.shape[0]
            tile = nl.load(x[i * 128 + row, column], mask=inside)
            largest = nl.max(tile, axis=[1], keepdims=True, mask=inside)
            nl.store(out[i * 128 + row, column], nl.subtract(tile, largest, mask=inside), mask=inside)
        return out

    x = normal(130, 5)
    np.testing.assert_array_equal(nki.simulate_kernel(shifted, x), x - x.max(1, keepdims=True))


def test_indices_that_run_backwards():
    @nki.jit
    def turned(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile, result = nl.load(x), nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        p, a, b = nl.mgrid[0 : x.shape[0], 0:4, 0:2]
        result[p, 2 * a + b] = tile[p, 2 * a + (-1 * b + 1)] * 2.0  # neighbours change places
        back = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        i, j = nl.mgrid[0 : x.shape[0], 0:8]
        back[i, -1 * j + 7] = result[i, j]
        nl.store(out, back)
        return out

    x = normal(32, 8)
    expected = (x.reshape(32, 4, 2)[:, :, ::-1] * 2).reshape(32, 8)[:, ::-1]
    np.testing.assert_array_equal(nki.simulate_kernel(turned, x), expected)


def test_accesses_of_more_dimensions_than_an_instruction_has():
    """Beta 1's compiler splits such instructions."""

    @nki.jit
    def every_other(x):
        out = nl.ndarray((x.shape[0], 32), dtype=x.dtype, buffer=nl.shared_hbm)
        p, a, b, c, d, e = nl.mgrid[0 : x.shape[0], 0:2, 0:2, 0:2, 0:2, 0:2]
        result = nl.ndarray((x.shape[0], 32), dtype=x.dtype, buffer=nl.sbuf)
        to = 16 * a + 8 * b + 4 * c + 2 * d + e
        result[p, to] = nl.load(x)[p, 243 * a + 81 * b + 27 * c + 9 * d + 3 * e] * 2.0
        nl.store(out, result)
        return out

    x = normal(16, 400)
    digits = np.array(list(np.ndindex(2, 2, 2, 2, 2))) @ [243, 81, 27, 9, 3]
    np.testing.assert_array_equal(nki.simulate_kernel(every_other, x), x[:, digits] * 2)


def test_rows_found_by_dividing_positions():
    """Division of integers is NumPy's: what is rounded afterwards is the quotient, not an integer."""

    @nki.jit
    def every_third_twice(x):
        out = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        row, column = nl.arange(128)[:, None], nl.arange(x.shape[1])[None, :]
        source = nl.floor(nisa.iota(row, dtype=nl.int32) / 3, dtype=nl.int32)
        nl.store(out[row, column], nl.load(x[source, column], mask=row < 126), mask=row < 126)
        return out

    x = normal(42, 16)
    np.testing.assert_array_equal(nki.simulate_kernel(every_third_twice, x)[:126], np.repeat(x, 3, axis=0))


def test_causal_mask_by_affine_select():
    @nki.jit
    def causal(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0 : x.shape[0], 0 : x.shape[1]]
        nl.store(out, nisa.affine_select(pred=(i >= j), on_true_tile=nl.load(x), on_false_value=-5.0))
        return out

    x = normal(64, 64)
    np.testing.assert_array_equal(nki.simulate_kernel(causal, x), np.where(np.tril(np.ones_like(x)) > 0, x, -5))


def test_a_tile_on_chip_is_stored_when_it_is_returned():
    @nki.jit
    def double(x):
        return nl.load(x) * 2

    x = normal(32, 16)
    np.testing.assert_array_equal(nki.simulate_kernel(double, x), 2 * x)


def test_writes_to_a_mutable_parameter():
    @nki.jit
    def into(x, out):
        nl.store(out, nl.load(x) + 1)

    x, out = normal(32, 16), np.zeros((32, 16), np.float32)
    nki.simulate_kernel(into, x, out)
    np.testing.assert_array_equal(out, x + 1)


def test_reduction_over_a_loop_with_a_mask():
    @nki.jit
    def total(x):
        out = nl.ndarray((64, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        result = nl.ndarray((nl.par_dim(64), x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        for k in nl.affine_range(4):
            tile = nl.load(x[nl.ds(k * 64, 64), :])
            result[...] = nl.loop_reduce(tile, op=np.add, loop_indices=[k], dtype=nl.float32, mask=(k < 3))
        nl.store(out, result)
        return out

    x = normal(256, 16)
    np.testing.assert_allclose(nki.simulate_kernel(total, x), x[:192].reshape(3, 64, 16).sum(0), rtol=1e-5, atol=1e-5)


def test_reduction_over_an_outer_loop():
    """Gradients of attention add up like this: the sum over an outer loop, once for each turn of an inner one."""

    @nki.jit
    def column_sums(x):
        out = nl.ndarray((3, 32, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((3, nl.par_dim(32), x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        for k in nl.affine_range(4):
            for q in nl.affine_range(3):
                tile = nl.load(x[nl.ds(k * 96 + q * 32, 32), :])
                total[q, :, :] = nl.loop_reduce(tile, op=np.add, loop_indices=(k,), dtype=nl.float32)
        for q in nl.affine_range(3):
            nl.store(out[q, :, :], total[q, :, :])
        return out

    x = normal(384, 16)
    np.testing.assert_allclose(nki.simulate_kernel(column_sums, x), x.reshape(4, 3, 32, 16).sum(0), rtol=1e-5, atol=1e-5)


def test_reductions_over_loops_that_run_again_start_again():
    @nki.jit
    def sums(x):
        out = nl.ndarray((2, 32, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        for half in range(2):  # Python's own
            total = nl.ndarray((nl.par_dim(32), x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
            for k in nl.affine_range(8):
                if k == 4:
                    break
                total[...] = nl.loop_reduce(nl.load(x[nl.ds((half * 4 + k) * 32, 32), :]), op=np.add, loop_indices=[k], dtype=nl.float32)
            nl.store(out[half, :, :], total)
        return out

    x = normal(256, 16)
    np.testing.assert_allclose(nki.simulate_kernel(sums, x), x.reshape(2, 4, 32, 16).sum(1), rtol=1e-5, atol=1e-5)


def test_benchmark_models_the_latency():
    timed = nki.benchmark(warmup=2, iters=3)(softmax)
    timed(normal(128, 512))
    assert 1 < timed.benchmark_result.nc_latency.get_latency_percentile(99) < 1000  # microseconds


def test_in_compiled_code():
    x = torch.randn(256, 128, device="neuron")
    torch._dynamo.reset()
    run = torch.compile(lambda a, b: add_tiles[2, 2](a * 2, b) + 1, backend="neuron", fullgraph=True)
    torch.testing.assert_close(run(x, x), x * 3 + 1)

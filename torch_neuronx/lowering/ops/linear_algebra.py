"""Factorisations and solvers.

Only what HLO itself has (Cholesky, triangular solve) and loops over it: LAPACK's custom calls exist on no chip.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import is_complex
from torch_neuronx.lowering.table import CallInfo, lowers


def adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2)) if is_complex(x) else jnp.swapaxes(x, -1, -2)


def _batched(function: Any, batch: int) -> Any:
    for _ in range(batch):
        function = jax.vmap(function)
    return function


@lowers("_linalg_check_errors")
def _check_errors(*_: Any, **__: Any) -> None:
    """A program on the chip cannot stop in the middle: a singular matrix gives infinities there, not an exception."""


# ---- triangular solve ----


def solve_triangular(a: Any, b: Any, lower: bool, transpose: bool = False, conjugate: bool = False, unit: bool = False) -> Any:
    """x with a x = b (or its transpose), by substitution; ``b`` has columns."""
    batch = lax.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if transpose or conjugate:
        a = jnp.swapaxes(a, -1, -2) if transpose else a
        a = jnp.conj(a) if conjugate and is_complex(a) else a
        lower = not lower if transpose else lower
    return _batched(lambda m, v: _substitute(m, v, lower, unit), len(batch))(a, b)


def _substitute(a: Any, b: Any, lower: bool, unit: bool) -> Any:
    size = a.shape[-1]
    rows = lax.iota(jnp.int32, size)

    def step(index: Any, x: Any) -> Any:
        row = index if lower else size - 1 - index
        known = (rows < row) if lower else (rows > row)
        left = jnp.where(known, a[row], 0)
        value = b[row] - left @ x
        return x.at[row].set(value if unit else value / a[row, row])

    return lax.fori_loop(0, size, step, jnp.zeros_like(b)) if size else b


@lowers("triangular_solve")
def _triangular_solve(b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    x = solve_triangular(a, b, lower=not upper, transpose=transpose, unit=unitriangular)
    return x, jnp.broadcast_to(a, (*x.shape[:-2], *a.shape[-2:]))


@lowers("linalg_solve_triangular")
def _solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if left:
        return solve_triangular(a, b, lower=not upper, unit=unitriangular)
    turned = solve_triangular(jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2), lower=upper, unit=unitriangular)
    return jnp.swapaxes(turned, -1, -2)


# ---- Cholesky ----


def _cholesky_one(a: Any) -> tuple[Any, Any]:
    """Lower factor, and the order (from 1) of the first minor that is not positive definite, 0 if all are."""
    size = a.shape[-1]
    rows = lax.iota(jnp.int32, size)

    def step(j: Any, state: Any) -> Any:
        factor, info = state
        before = jnp.where(rows < j, factor[j], 0)
        column = a[:, j] - factor @ jnp.conj(before)
        pivot = column[j].real
        info = jnp.where((info == 0) & ~(pivot > 0), j + 1, info)
        root = jnp.sqrt(pivot)
        column = jnp.where(rows > j, column / root.astype(a.dtype), jnp.where(rows == j, root.astype(a.dtype), 0))
        return factor.at[:, j].set(column), info

    start = (jnp.zeros_like(a), jnp.asarray(0, jnp.int32))
    return lax.fori_loop(0, size, step, start) if size else start


def _cholesky(a: Any) -> tuple[Any, Any]:
    return _batched(_cholesky_one, a.ndim - 2)(a)


@lowers("linalg_cholesky_ex")
def _cholesky_ex(a: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    factor, info = _cholesky(adjoint(a) if upper else a)
    return (adjoint(factor) if upper else factor), info


@lowers("cholesky")
def _cholesky_plain(a: Any, upper: bool = False) -> Any:
    return _cholesky_ex(a, upper=upper)[0]


@lowers("cholesky_solve")
def _cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    lower = adjoint(factor) if upper else factor
    return solve_triangular(adjoint(lower), solve_triangular(lower, b, lower=True), lower=False)


@lowers("cholesky_inverse")
def _cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return _cholesky_solve(eye, factor, upper)


# ---- LU ----


def _lu_one(a: Any, pivot: bool = True) -> tuple[Any, Any, Any]:
    """Packed factors, pivots as row swaps (from 1, int32), and the first zero pivot (from 1; 0: none)."""
    rows, columns = a.shape
    steps = min(rows, columns)
    places, across = lax.iota(jnp.int32, rows), lax.iota(jnp.int32, columns)

    def step(k: Any, state: Any) -> Any:
        m, swaps, info = state
        size = jnp.where(places >= k, jnp.abs(m[:, k]), -1)
        best = jnp.argmax(size).astype(jnp.int32) if pivot else k.astype(jnp.int32)
        row_k, row_best = m[k], m[best]
        m = m.at[k].set(row_best).at[best].set(row_k)
        value = m[k, k]
        info = jnp.where((info == 0) & (value == 0), k + 1, info)
        factor = jnp.where((places > k) & (value != 0), m[:, k] / jnp.where(value == 0, 1, value), 0)
        m = m - jnp.outer(factor, jnp.where(across > k, m[k], 0))
        m = m.at[:, k].set(jnp.where((places > k) & (value != 0), factor, m[:, k]))
        return m, swaps.at[k].set(best + 1), info

    start = (a, jnp.zeros((steps,), jnp.int32), jnp.asarray(0, jnp.int32))
    m, swaps, info = lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, start) if steps else start
    return m, swaps, info.astype(jnp.int32)


def _lu(a: Any, pivot: bool = True) -> tuple[Any, Any, Any]:
    return _batched(lambda m: _lu_one(m, pivot), a.ndim - 2)(a)


@lowers("linalg_lu_factor_ex")
def _lu_factor_ex(a: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    return _lu(a, pivot)


def _swapped(swaps: Any, rows: int) -> Any:
    """Row order that the swaps lead to."""

    def one(pivots: Any) -> Any:
        def step(k: Any, order: Any) -> Any:
            other = pivots[k] - 1
            a, b = order[k], order[other]
            return order.at[k].set(b).at[other].set(a)

        return lax.fori_loop(0, pivots.shape[0], step, lax.iota(jnp.int32, rows)) if pivots.shape[0] else lax.iota(jnp.int32, rows)

    return _batched(one, swaps.ndim - 1)(swaps)


def _unpacked(packed: Any, swaps: Any) -> tuple[Any, Any, Any]:
    rows, columns = packed.shape[-2:]
    size = min(rows, columns)
    lower = jnp.tril(packed[..., :, :size], -1) + jnp.eye(rows, size, dtype=packed.dtype)
    upper = jnp.triu(packed[..., :size, :])
    order = _swapped(swaps, rows)
    permutation = (order[..., None, :] == lax.iota(jnp.int32, rows)[:, None]).astype(packed.dtype)
    return permutation, lower, upper


@lowers("linalg_lu")
def _linalg_lu(a: Any, *, pivot: bool = True) -> Any:
    packed, swaps, _ = _lu(a, pivot)
    permutation, lower, upper = _unpacked(packed, swaps)
    return (permutation if pivot else jnp.zeros((0,), a.dtype)), lower, upper


@lowers("lu_unpack")
def _lu_unpack(packed: Any, swaps: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    permutation, lower, upper = _unpacked(packed, swaps)
    empty = jnp.zeros((0,), packed.dtype)
    return (permutation if unpack_pivots else empty), (lower if unpack_data else empty), (upper if unpack_data else empty)


def _solve_packed(packed: Any, swaps: Any, b: Any, adjoint_of: bool = False) -> Any:
    batch = lax.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    order = jnp.broadcast_to(_swapped(swaps, packed.shape[-1]), (*batch, packed.shape[-1]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if adjoint_of:
        y = solve_triangular(packed, b, lower=False, transpose=True, conjugate=True)
        y = solve_triangular(packed, y, lower=True, transpose=True, conjugate=True, unit=True)
        return jnp.take_along_axis(y, jnp.argsort(order, -1)[..., None], axis=-2)
    y = jnp.take_along_axis(b, order[..., None], axis=-2)
    return solve_triangular(packed, solve_triangular(packed, y, lower=True, unit=True), lower=False)


@lowers("linalg_lu_solve")
def _lu_solve(packed: Any, swaps: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    if left:
        return _solve_packed(packed, swaps, b, adjoint)
    turned = jnp.conj(jnp.swapaxes(b, -1, -2)) if is_complex(b) else jnp.swapaxes(b, -1, -2)
    result = _solve_packed(packed, swaps, turned, not adjoint)
    return jnp.conj(jnp.swapaxes(result, -1, -2)) if is_complex(b) else jnp.swapaxes(result, -1, -2)


@lowers("_linalg_solve_ex", call=True)
def _solve_ex(call: CallInfo, a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    columns = b[..., None] if vector else b
    if left:
        packed, swaps, info = _lu(a)
        result = _solve_packed(packed, swaps, columns)
    else:
        packed, swaps, info = _lu(a)
        result = _lu_solve(packed, swaps, columns, left=False)
    result = result[..., 0] if vector else result
    return result.reshape(tuple(call.out[0].shape)), packed, swaps, info


@lowers("linalg_inv_ex")
def _inv_ex(a: Any, *, check_errors: bool = False) -> Any:
    packed, swaps, info = _lu(a)
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    return _solve_packed(packed, swaps, eye), info


def _sign_of_swaps(swaps: Any, dtype: Any) -> Any:
    moved = jnp.sum(swaps != lax.iota(jnp.int32, swaps.shape[-1]) + 1, -1)
    return (1 - 2 * (moved % 2)).astype(dtype)


@lowers("_linalg_det")
def _det(a: Any) -> Any:
    packed, swaps, _ = _lu(a)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, -1) * _sign_of_swaps(swaps, a.dtype), packed, swaps


@lowers("_linalg_slogdet")
def _slogdet(a: Any) -> Any:
    packed, swaps, _ = _lu(a)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    size = jnp.abs(diagonal)
    sign = jnp.prod(jnp.where(size == 0, 0, diagonal / jnp.where(size == 0, 1, size).astype(a.dtype)), -1)
    return sign * _sign_of_swaps(swaps, a.dtype), jnp.sum(jnp.log(size), -1), packed, swaps


# ---- QR ----


def _householder(x: Any, k: Any) -> tuple[Any, Any, Any]:
    """LAPACK's reflector for ``x`` below place k: vector (1 at k), tau, and the value that stays at k."""
    rows = lax.iota(jnp.int32, x.shape[0])
    alpha = x[k]
    below = jnp.where(rows > k, x, 0)
    tail = jnp.sum((below * jnp.conj(below)).real)
    norm = jnp.sqrt((alpha * jnp.conj(alpha)).real + tail)
    beta = jnp.where(alpha.real >= 0, -norm, norm)
    trivial = (tail == 0) & (alpha.imag == 0 if is_complex(x) else jnp.asarray(True))
    safe = jnp.where(trivial, 1, beta).astype(x.dtype)
    tau = jnp.where(trivial, 0, (safe - alpha) / safe)
    divisor = jnp.where(trivial, 1, alpha - safe)
    vector = jnp.where(rows == k, 1, below / divisor)
    return vector.astype(x.dtype), tau.astype(x.dtype), jnp.where(trivial, alpha, safe)


def _geqrf_one(a: Any) -> tuple[Any, Any]:
    rows, columns = a.shape
    steps = min(rows, columns)
    across, places = lax.iota(jnp.int32, columns), lax.iota(jnp.int32, rows)

    def step(k: Any, state: Any) -> Any:
        m, taus = state
        vector, tau, kept = _householder(m[:, k], k)
        rest = m - jnp.conj(tau) * jnp.outer(vector, jnp.conj(vector) @ m)
        m = jnp.where(across > k, rest, m)
        m = m.at[:, k].set(jnp.where(places < k, m[:, k], jnp.where(places == k, kept, vector)))
        return m, taus.at[k].set(tau)

    start = (a, jnp.zeros((steps,), a.dtype))
    return lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, start) if steps else start


@lowers("geqrf")
def _geqrf(a: Any) -> Any:
    return _batched(_geqrf_one, a.ndim - 2)(a)


def _product_one(packed: Any, taus: Any, columns: int) -> Any:
    rows, steps = packed.shape[0], taus.shape[0]
    places = lax.iota(jnp.int32, rows)

    def step(index: Any, q: Any) -> Any:
        k = steps - 1 - index
        vector = jnp.where(places > k, packed[:, k], jnp.where(places == k, 1, 0)).astype(packed.dtype)
        return q - taus[k] * jnp.outer(vector, jnp.conj(vector) @ q)

    start = jnp.eye(rows, columns, dtype=packed.dtype)
    return lax.fori_loop(jnp.int32(0), jnp.int32(steps), step, start) if steps else start


@lowers("linalg_householder_product")
def _householder_product(packed: Any, taus: Any) -> Any:
    return _batched(lambda m, t: _product_one(m, t, m.shape[1]), packed.ndim - 2)(packed, taus)


@lowers("linalg_qr")
def _qr(a: Any, mode: str = "reduced") -> Any:
    packed, taus = _geqrf(a)
    rows, columns = a.shape[-2:]
    size = rows if mode == "complete" else min(rows, columns)
    upper = jnp.triu(packed[..., :size, :])
    if mode == "r":
        return jnp.zeros((0,), a.dtype), upper
    return _batched(lambda m, t: _product_one(m, t, size), a.ndim - 2)(packed, taus), upper


# ---- Eigenvalues of hermitian matrices, singular values: cyclic Jacobi ----

_SWEEPS = 12


def _jacobi_one(a: Any) -> tuple[Any, Any]:
    """Ascending eigenvalues (real) and eigenvectors of a hermitian matrix."""
    size = a.shape[-1]
    vectors = jnp.eye(size, dtype=a.dtype)
    if size < 2:
        return jnp.diagonal(a).real, vectors
    pairs = jnp.asarray([(p, q) for p in range(size) for q in range(p + 1, size)], jnp.int32)

    def rotate(index: Any, state: Any) -> Any:
        m, v = state
        p, q = pairs[index % pairs.shape[0], 0], pairs[index % pairs.shape[0], 1]
        entry = m[p, q]
        magnitude = jnp.abs(entry)
        phase = jnp.where(magnitude == 0, 1, entry / jnp.where(magnitude == 0, 1, magnitude).astype(a.dtype)).astype(a.dtype)
        theta = (m[q, q].real - m[p, p].real) / (2 * jnp.where(magnitude == 0, 1, magnitude))
        t = jnp.where(theta >= 0, 1, -1) / (jnp.abs(theta) + jnp.sqrt(1 + theta * theta))
        t = jnp.where(magnitude == 0, 0, t)
        c = 1 / jnp.sqrt(1 + t * t)
        s = (t * c).astype(a.dtype) * phase
        c = c.astype(a.dtype)
        # Columns (p, q) <- (c p - conj(s) q, s p + c q), then rows likewise.
        column_p, column_q = m[:, p] * c - m[:, q] * jnp.conj(s), m[:, p] * s + m[:, q] * c
        m = m.at[:, p].set(column_p).at[:, q].set(column_q)
        row_p, row_q = m[p] * c - m[q] * s, m[p] * jnp.conj(s) + m[q] * c
        m = m.at[p].set(row_p).at[q].set(row_q)
        v_p, v_q = v[:, p] * c - v[:, q] * jnp.conj(s), v[:, p] * s + v[:, q] * c
        return m, v.at[:, p].set(v_p).at[:, q].set(v_q)

    m, vectors = lax.fori_loop(0, _SWEEPS * pairs.shape[0], rotate, (a, vectors))
    values = jnp.diagonal(m).real
    order = jnp.argsort(values)
    return values[order], vectors[:, order]


def _hermitian(a: Any, uplo: str) -> Any:
    """Both triangles from the one that ``uplo`` names."""
    half = jnp.tril(a, -1) if uplo.upper() == "L" else jnp.triu(a, 1)
    diagonal = jnp.eye(a.shape[-1], dtype=a.dtype) * a.real.astype(a.dtype)
    return half + adjoint(half) + diagonal


@lowers("_linalg_eigh")
def _eigh(a: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    values, vectors = _batched(_jacobi_one, a.ndim - 2)(_hermitian(a, UPLO))
    return values, (vectors if compute_v else jnp.zeros((0,), a.dtype))


def _svd_one(a: Any) -> tuple[Any, Any, Any]:
    """One-sided Jacobi on a tall matrix: u (rows, columns), singular values descending, v (columns, columns)."""
    columns = a.shape[1]
    v = jnp.eye(columns, dtype=a.dtype)
    if columns > 1:
        pairs = jnp.asarray([(p, q) for p in range(columns) for q in range(p + 1, columns)], jnp.int32)

        def rotate(index: Any, state: Any) -> Any:
            u, w = state
            p, q = pairs[index % pairs.shape[0], 0], pairs[index % pairs.shape[0], 1]
            up, uq = u[:, p], u[:, q]
            alpha, beta = jnp.sum((up * jnp.conj(up)).real), jnp.sum((uq * jnp.conj(uq)).real)
            inner = jnp.sum(jnp.conj(up) * uq)
            magnitude = jnp.abs(inner)
            none = magnitude == 0
            phase = jnp.where(none, 1, inner / jnp.where(none, 1, magnitude).astype(a.dtype)).astype(a.dtype)
            zeta = (beta - alpha) / (2 * jnp.where(none, 1, magnitude))
            t = jnp.where(none, 0, jnp.where(zeta >= 0, 1, -1) / (jnp.abs(zeta) + jnp.sqrt(1 + zeta * zeta)))
            c = (1 / jnp.sqrt(1 + t * t)).astype(a.dtype)
            s = t.astype(a.dtype) * c * phase
            u = u.at[:, p].set(up * c - uq * jnp.conj(s)).at[:, q].set(up * s + uq * c)
            wp, wq = w[:, p], w[:, q]
            return u, w.at[:, p].set(wp * c - wq * jnp.conj(s)).at[:, q].set(wp * s + wq * c)

        a, v = lax.fori_loop(0, _SWEEPS * pairs.shape[0], rotate, (a, v))
    values = jnp.sqrt(jnp.sum((a * jnp.conj(a)).real, 0))
    order = jnp.argsort(-values)
    values, a, v = values[order], a[:, order], v[:, order]
    u = a / jnp.where(values == 0, 1, values).astype(a.dtype)
    return u, values, v


@lowers("linalg_pinv.atol_rtol_tensor")
def _pinv(a: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if a.size == 0:
        return jnp.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
    u, values, vh = _svd(a) if not hermitian else _eigen_as_svd(a)
    largest = jnp.max(values, -1, keepdims=True)
    given = atol is not None
    default = 0.0 if given else max(a.shape[-2:]) * float(jnp.finfo(a.dtype).eps)
    absolute = jnp.asarray(0.0 if atol is None else atol)[..., None]
    relative = jnp.asarray(default if rtol is None else rtol)[..., None]
    if rtol is None and given:
        relative = jnp.where(absolute > 0, 0.0, max(a.shape[-2:]) * float(jnp.finfo(a.dtype).eps))
    limit = jnp.maximum(absolute, relative * largest)
    inverse = jnp.where(values > limit, 1 / jnp.where(values == 0, 1, values), 0).astype(a.dtype)
    return (adjoint(vh) * inverse[..., None, :]) @ adjoint(u)


def _eigen_as_svd(a: Any) -> tuple[Any, Any, Any]:
    values, vectors = _eigh(a)
    return vectors, jnp.abs(values), adjoint(vectors * jnp.sign(values)[..., None, :].astype(a.dtype))


@lowers("ormqr")
def _ormqr(packed: Any, taus: Any, other: Any, left: bool = True, transpose: bool = False) -> Any:
    """Q, the product of the reflectors, or its adjoint, times ``other``."""
    size = packed.shape[-2]
    q = _batched(lambda m, t: _product_one(m, t, size), packed.ndim - 2)(packed, taus)
    q = adjoint(q) if transpose else q
    return q @ other if left else other @ q


@lowers("linalg_matrix_exp")
def _matrix_exp(a: Any) -> Any:
    """Scaling and squaring around a Taylor polynomial of degree 18."""
    if a.size == 0:
        return a
    norm = jnp.max(jnp.sum(jnp.abs(a), -2), -1)
    power = jnp.maximum(jnp.ceil(jnp.log2(jnp.maximum(jnp.max(norm), 1e-30))), 0).astype(jnp.int32)
    scaled = a / jnp.exp2(power.astype(norm.dtype)).astype(a.dtype)
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    result = eye
    for k in range(18, 0, -1):
        result = eye + scaled @ result / k
    return lax.fori_loop(jnp.int32(0), power, lambda _, m: m @ m, result)


def _completed(u: Any, values: Any, size: int) -> Any:
    """``u`` with orthonormal columns also where a singular value is 0 or missing: by QR, signs as they were."""
    rows = u.shape[-2]
    filler = jnp.where((values > jnp.finfo(values.dtype).eps * values.max(-1, keepdims=True))[..., None, :], u, 0)
    basis = jnp.concatenate([filler, jnp.broadcast_to(jnp.eye(rows, dtype=u.dtype), (*u.shape[:-1], rows))], -1)

    def one(m: Any) -> Any:
        def step(k: Any, state: Any) -> Any:
            q, filled = state
            column = m[:, k]
            for _ in range(2):
                column = column - q @ (jnp.conj(q).T @ column)
            norm = jnp.sqrt(jnp.sum((column * jnp.conj(column)).real))
            use = (norm > 1e-3) & (filled < size)
            place = jnp.where(k < u.shape[-1], k, _first_empty(q))
            placed = q.at[:, jnp.minimum(place, size - 1)].set(column / jnp.where(norm == 0, 1, norm).astype(m.dtype))
            return jnp.where(use, placed, q), filled + use

        start = (jnp.zeros((rows, size), m.dtype), jnp.asarray(0, jnp.int32))
        return lax.fori_loop(0, m.shape[1], step, start)[0]

    return _batched(one, u.ndim - 2)(basis)


def _first_empty(q: Any) -> Any:
    return jnp.argmin(jnp.sum(jnp.abs(q), 0) > 0)


@lowers("_linalg_svd")
def _svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    rows, columns = a.shape[-2:]
    tall = a if rows >= columns else adjoint(a)
    u, values, v = _batched(_svd_one, a.ndim - 2)(tall)
    if not compute_uv:
        empty = jnp.zeros((0,), a.dtype)
        return empty, values, empty
    if values.size and math.prod(a.shape):
        u = _completed(u, values, tall.shape[-2] if full_matrices else tall.shape[-1])
    elif full_matrices:
        u = jnp.broadcast_to(jnp.eye(tall.shape[-2], dtype=a.dtype), (*a.shape[:-2], tall.shape[-2], tall.shape[-2]))
    return (u, values, adjoint(v)) if rows >= columns else (v, values, adjoint(u))

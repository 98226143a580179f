"""What is known not to lower, or to differ from PyTorch, each with its reason.

In float32, a variant that fails without a row, and a row whose variant passes, both fail the suite: a fixed bug takes its row away. In the
other dtypes the share that passes is what is held (test_conformance.py).
"""

ALL = ("float32", "bfloat16", "int32", "int64", "bool", "complex64")

_BY_REASON = {
    "the shape of its result depends on data": """
        argwhere combinations masked_select nonzero unique unique_consecutive index_put nn.functional.ctc_loss
    """,
    "the host needs a value": """
        allclose equal item corrcoef cov narrow tensor_split nn.functional.gaussian_nll_loss
    """,
    "the chip has no such tensors": "chalf sparse.mm.reduce sparse.sampled_addmm to_sparse",
    "no lowering yet: linear algebra": """
        linalg.eig linalg.eigvals linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve linalg.lstsq linalg.lstsq.grad_oriented
    """,
    "no lowering yet: special functions": """
        special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.modified_bessel_k0
        special.modified_bessel_k1 special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 special.spherical_bessel_j0
    """,
    "no lowering yet": "_segment_reduce.lengths _segment_reduce.offsets hash_tensor histogram histogramdd",
    "its recurrence cancels: PyTorch's own float32 result is further from float64's than the tolerance": "special.hermite_polynomial_he",
}
ROWS: dict[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}


def reason(op: str) -> str | None:
    """Why this variant is expected to fail, or None."""
    return ROWS.get(op)

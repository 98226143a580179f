"""Complex numbers as pairs of real ones, for chips that have no complex dtype. See docs/dev/lowering.md, "Complex numbers"."""

from torch_neuronx.lowering.pairs.interpret import has_complex, on_pairs

__all__ = ["has_complex", "on_pairs"]

"""The dtypes of ``nki.language`` alone."""

from torch_neuronx.nki import dtypes as _dtypes

globals().update({name: name for name in _dtypes.DTYPES})
bool_ = "bool"

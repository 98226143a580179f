"""Stands for ``torch_neuronx.nki`` where the vendor's package ``nki`` is not installed."""

from torch_neuronx._nki_names import take_place

take_place(__name__, "torch_neuronx.nki")

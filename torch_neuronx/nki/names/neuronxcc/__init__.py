"""Holds ``neuronxcc.nki``, the beta-1 names, where the vendor's compiler is not installed."""

from torch_neuronx._nki_names import take_place

take_place(__name__ + ".nki", "torch_neuronx.nki.beta1")
nki = __import__("sys").modules[__name__ + ".nki"]

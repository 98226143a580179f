"""Kernels that the hardware or its compiler would refuse, by the kind of rule that they break. ``tests/nki/test_illegal.py`` runs them."""

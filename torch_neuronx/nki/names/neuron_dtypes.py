"""Stands for the vendor's ``neuron_dtypes`` where that is not installed."""

import sys

from torch_neuronx.nki import numpy_dtypes

sys.modules[__name__] = numpy_dtypes

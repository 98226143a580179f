"""``neuronxcc.nki.isa.constants``."""

from torch_neuronx.nki.isa.constants import *  # noqa: F403

"""Random state of the devices. Seeding opens no device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx._device import device_count
from torch_neuronx._utils import _get_device_index


def default_generators() -> tuple[torch.Generator, ...]:
    """The generator of each device; ``torch.neuron.default_generators`` is this tuple."""
    return tuple(_C._default_generator(index) for index in range(device_count()))


def _generator(device: Any) -> torch.Generator:
    return _C._default_generator(_get_device_index(device, optional=True))


def get_rng_state(device: Any = "neuron") -> torch.Tensor:
    """State of ``device``'s generator: 16 bytes (seed, offset) as a uint8 tensor on the CPU."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """State of each device's generator."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "neuron") -> None:
    """Sets the state of ``device``'s generator to what :func:`get_rng_state` gave."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the state of each device's generator."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the generator of the current device."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices alike; ``torch.manual_seed`` calls this."""
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device's generator from the system's entropy."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    generators = default_generators()
    if generators:
        manual_seed_all(generators[0].seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(None).initial_seed()

"""Which chip a kernel is traced for."""

import pytest

from torch_neuronx.nki.target import current_target


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "trn2"),  # the emulated device says Trainium2
        ({"TORCH_NEURONX_EMULATED_INSTANCE": "trn2u.48xlarge"}, "trn2"),
        ({"TORCH_NEURONX_EMULATED_INSTANCE": "trn3-gen1"}, "trn3"),
        ({"TORCH_NEURONX_EMULATED_INSTANCE": "trn3", "NKI_NC_VERSION": "gen3"}, "trn2"),
        ({"NKI_NC_VERSION": "gen2", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, "trn3"),
    ],
)
def test_the_target_is_the_device_s_unless_named(monkeypatch, environment, name):
    for variable in ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_NC_VERSION", "TORCH_NEURONX_EMULATED_INSTANCE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert current_target().name == name

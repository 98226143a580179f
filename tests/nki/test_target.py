"""Which chip a kernel is traced for."""

import nki
import nki.language as nl
import numpy as np
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


def test_a_decorator_may_name_the_target(monkeypatch):
    for variable in ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_NC_VERSION", "TORCH_NEURONX_EMULATED_INSTANCE"):
        monkeypatch.delenv(variable, raising=False)

    def copy(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    x = np.zeros((4, 4), np.float32)
    kernel = nki.jit(platform_target="trn3")(copy)
    assert [kernel.trace(x).target.name, kernel[2].trace(x).target.name, nki.jit(copy).trace(x).target.name] == ["trn3", "trn3", "trn2"]
    assert kernel.trace(x, target="trn2").target.name == "trn2"
    np.testing.assert_array_equal(kernel(x), x)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert kernel.trace(x).target.name == "trn1"
    with pytest.raises(ValueError, match="unknown NKI target 'trn9'"):
        nki.jit(platform_target="trn9")(copy)

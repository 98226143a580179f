"""torchao's weight-only and dynamic quantisation on the device: equal to the CPU, quantised here or moved here."""

import io
import warnings

import pytest
import torch
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

DEVICE = "neuron"
CONFIGS = {
    "int8 weights": lambda: Int8WeightOnlyConfig(),
    "int4 weights": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int8 weights, int8 activations": lambda: Int8DynamicActivationInt8WeightConfig(),
    "int4 weights, int8 activations": lambda: Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)),
    "float8 weights": lambda: Float8WeightOnlyConfig(),
}
pytestmark = pytest.mark.filterwarnings("ignore")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32)).bfloat16()


@pytest.mark.parametrize("name", CONFIGS)
def test_quantised(name: str) -> None:
    x = torch.randn(5, 64, dtype=torch.bfloat16)
    on_cpu, moved, here = model(), model(), model().to(DEVICE)
    for m in (on_cpu, moved, here):
        quantize_(m, CONFIGS[name]())
    moved.to(DEVICE)
    expected = on_cpu(x)
    assert not torch.equal(expected, model()(x))
    for m in (moved, here):
        assert m[0].weight.device.type == DEVICE
        torch.testing.assert_close(m(x.to(DEVICE)).cpu(), expected)
    buffer = io.BytesIO()
    torch.save(here.state_dict(), buffer)
    buffer.seek(0)
    restored = model().to(DEVICE)
    restored.load_state_dict(torch.load(buffer, weights_only=False), assign=True)
    assert torch.equal(restored(x.to(DEVICE)), here(x.to(DEVICE)))


def test_packed_products() -> None:
    """The ATen ops below torchao's CPU formats."""
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    weight, scales = torch.randint(-128, 128, (32, 64), dtype=torch.int8), torch.rand(32).bfloat16()
    for _ in range(2):
        actual = torch._weight_int8pack_mm(x.to(DEVICE), weight.to(DEVICE), scales.to(DEVICE))
        torch.testing.assert_close(actual.cpu(), torch._weight_int8pack_mm(x, weight, scales))
    nibbles = torch.randint(0, 16, (32, 64), dtype=torch.int32)
    zeros = torch.rand(2, 32, 2).bfloat16()
    packed = torch._convert_weight_to_int4pack_for_cpu(nibbles, 2)
    expected = torch._weight_int4pack_mm_for_cpu(x, packed, 32, zeros)
    for _ in range(2):
        ours = torch._convert_weight_to_int4pack_for_cpu(nibbles.to(DEVICE), 2)
        assert torch.equal(ours.cpu(), packed)
        torch.testing.assert_close(torch._weight_int4pack_mm_for_cpu(x.to(DEVICE), ours, 32, zeros.to(DEVICE)).cpu(), expected)

"""Modules for a chip: its compiler's custom calls are there, and dtypes that it lacks are not."""

import re
from typing import Any

import pytest
import torch

from tests.lowering.check import chip_lacks
from torch_neuronx.lowering import Program, lower

aten, neuron = torch.ops.aten, torch.ops.neuron
X = torch.rand(4, 16)

CUSTOM_CALLS = [
    ("AwsNeuronGelu", aten.gelu.default, (X,), {}),
    ("AwsNeuronGeluApprxTanh", aten.gelu.default, (X,), {"approximate": "tanh"}),
    ("AwsNeuronSilu", aten.silu.default, (X,), {}),
    ("AwsNeuronSoftmax", aten._softmax.default, (X, -1, False), {}),
    ("AwsNeuronRmsNorm", aten._fused_rms_norm.default, (X, [16], X[0], 1e-5), {}),
    ("AwsNeuronArgMax", aten.argmax.default, (X, 1), {}),
    ("AwsNeuronArgMin", aten.argmin.default, (X,), {}),
    ("AwsNeuronTopK", aten.topk.default, (X, 3), {}),
    ("AwsNeuronTopK", aten.topk.default, (X, 3, 1, False), {}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "op", "args", "kwargs"), CUSTOM_CALLS)
def test_custom_calls(name: str, op: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> None:
    args = [arg.to(dtype) if isinstance(arg, torch.Tensor) else arg for arg in args]
    program = Program.from_call(op, args, kwargs)
    lowered = lower(program, "trn2")
    assert re.findall(r"@(AwsNeuron\w+)", lowered.text) == [name]
    assert lowered.hlo()
    assert "AwsNeuron" not in lower(program).text


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.silu.default, (X.double(),)),
        (aten.argmax.default, (X.long(), 1)),
        (aten.topk.default, (X.int(), 3)),  # NCC_EVRF013
        (aten.topk.default, (X[:, :7].clone(), 3)),  # fewer elements than the call gives results
    ],
)
def test_what_a_custom_call_does_not_take_is_decomposed(op: Any, args: Any) -> None:
    assert "AwsNeuron" not in lower(Program.from_call(op, args), "trn2").text


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.linspace.default, (0.0, 1.0, 7)),
        (aten.linspace.Tensor_Tensor, (X[0, 0], X[0, 1], 7)),
        (aten.logspace.default, (0.0, 1.0, 7)),
        (aten.arange.start_step, (0.0, 1.0, 0.1)),
        (neuron.philox_dropout.default, (X, 0.1, 1, 2)),
        (neuron.philox_bernoulli_.Tensor, (X, X, 1, 2)),
        (neuron.philox_geometric_.default, (X, 0.3, 1, 2)),
        (neuron.philox_multinomial.default, (X, 3, True, 1, 2)),
        (neuron.philox_normal_.default, (X, 0.0, 1.0, 1, 2)),
    ],
)
def test_no_float64_comes_in(op: Any, args: Any) -> None:
    assert not chip_lacks(lower(Program.from_call(op, args), "trn2").text)

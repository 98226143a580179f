"""``mode`` and ``options`` of backend "neuron"."""

import pytest
import torch

from torch_neuronx.compile.options import MODES, OPTIONS, Settings, parse


@pytest.mark.parametrize("mode", [None, *MODES])
def test_every_mode_computes(mode):
    x = torch.arange(6.0, device="neuron")
    assert torch.equal(torch.compile(lambda x: x * 2 + 1, backend="neuron", mode=mode)(x), x * 2 + 1)


def test_options_are_left_alone():
    options = {"model_name": "m", "fallback_execution": True, "dynamic": False}
    given = dict(options)
    x = torch.ones(3, device="neuron")
    assert torch.equal(torch.compile(lambda x: x + 1, backend="neuron", options=options)(x), x + 1)
    assert options == given
    assert parse(None, options) == Settings("m", True)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no option 'model_nam'; there are model_name, .*Did you mean 'model_name'\?"):
        parse(None, {"model_nam": "x"})
    with pytest.raises(ValueError, match="no mode 'fastest'; there are default, reduce-overhead"):
        parse("fastest", None)
    with pytest.raises(TypeError, match="'fallback_execution' takes a bool, but got 3"):
        parse(None, {"fallback_execution": 3})
    assert OPTIONS.keys() >= {"model_name", "fallback_execution"}


def test_the_refusal_reaches_the_user():
    compiled = torch.compile(lambda x: x + 1, backend="neuron", options={"triton.cudagraphs": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"no option 'triton.cudagraphs'"):
        compiled(torch.ones(2, device="neuron"))

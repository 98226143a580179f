"""NKI kernels in modules for a chip: a custom call, whose trace the simulator can run in place of the compiler (a stand-in)."""

import re

import nki
import nki.language as nl
import pytest
import torch

from torch_neuronx import nki_op
from torch_neuronx.lowering import NotLowered, Program, lower
from torch_neuronx.lowering.ops.kernels import traced_from
from torch_neuronx.nki.kernel import Compiled
from torch_neuronx.nki.torch_op import execute, typed


@nki.jit
def scaled(x, factor):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), factor))
    return out


@nki.jit
def into(x, out):
    nl.store(out, nl.load(x))


@nki_op("nki_lowering_test::scaled", mutates_args={})
def scaled_op(x: torch.Tensor, factor: float) -> torch.Tensor:
    return scaled(x, factor)


def graph_of(function, *inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    return Program.from_graph(make_fx(function, tracing_mode="fake")(*inputs), inputs)


@pytest.mark.parametrize("call", [scaled, scaled_op], ids=["kernel", "operator"])
def test_a_kernel_is_a_custom_call(call):
    x = torch.rand(16, 8)
    lowered = lower(graph_of(lambda t: call(t + 1, 3.0) - 1, x), "trn2")
    assert re.findall(r"@(AwsNeuron\w+)", lowered.text) == ["AwsNeuronCustomNativeKernel"]
    assert lowered.hlo()
    config = re.search(r'backend_config = "(.*?[^\\])"', lowered.text).group(1).replace("\\22", '"')
    traced = traced_from(config)
    assert (traced.name, traced.target.name, traced.lnc) == ("scaled", "trn2", 1)
    (found,) = typed(traced, execute(Compiled(traced), [x + 1]))
    torch.testing.assert_close(found, (x + 1) * 3)


def test_what_does_not_lower():
    x = torch.rand(16, 8)
    with pytest.raises(NotLowered, match="portable module holds no NKI kernels"):
        lower(graph_of(lambda t: scaled(t, 3.0), x))
    with pytest.raises(NotLowered, match="the kernel into writes to its arguments"):
        lower(graph_of(lambda t, o: into(t, o), x, x.clone()), "trn2")

"""Kernels called from PyTorch: eager on `neuron`, as custom ops, with gradients and fake tensors."""

import dataclasses

import nki
import nki.isa as nisa
import nki.language as nl
import pytest
import torch

from torch_neuronx import nki_op, wrap_nki


@nki.jit
def scale_kernel(x, factor=2.0):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nl.store(out, tile)
    return out


@nki.jit
def add_into(x, out):
    a, b = nl.load(x), nl.load(out)
    nisa.tensor_tensor(b, a, b, nl.add)
    nl.store(out, b)


@nki_op("nki_test::scale", mutates_args={})
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return scale_kernel(x, factor)


scale.register_autograd(
    lambda ctx, grad: (scale(grad.contiguous(), ctx.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@nki_op("nki_test::add_into", mutates_args={"out"})
def add_into_op(x: torch.Tensor, out: torch.Tensor) -> None:
    add_into(x, out)


@pytest.fixture
def x():
    return torch.randn(64, 32, device="neuron")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_eager(dtype):
    x = torch.randn(64, 32, dtype=dtype)
    got = scale_kernel((x + 1).to("neuron"))
    assert got.device.type == "neuron" and got.dtype == dtype
    torch.testing.assert_close(got.cpu(), (x + 1) * 2, rtol=0, atol=0)


def test_order_with_the_stream(x):
    y = x
    for _ in range(20):
        y = scale_kernel(y * 0.5) + 0
    torch.testing.assert_close(y, x)


def test_non_contiguous_arguments(x):
    torch.testing.assert_close(scale_kernel(x.t().contiguous().t()), x * 2)
    target = torch.zeros(32, 64, device="neuron").t()
    add_into(x, target)
    torch.testing.assert_close(target, x)


def test_writes_to_a_parameter(x):
    target = torch.ones_like(x)
    assert add_into(x, target) is None
    torch.testing.assert_close(target, x + 1)


def test_traced_once_per_shape(x):
    kernel = nki.jit(scale_kernel.func)
    for _ in range(3):
        kernel(x)
        kernel(x.cpu())
    assert len(kernel._cache) == 1
    kernel(x[:32])
    kernel(x, factor=3.0)
    assert len(kernel._cache) == 3


def test_launch_on_both_cores(x):
    torch.testing.assert_close(wrap_nki(scale_kernel)[2](x), x * 2)


def test_custom_op(x):
    torch.testing.assert_close(scale(x, 3.0), x * 3)
    target = torch.zeros_like(x)
    add_into_op(x, target)
    torch.testing.assert_close(target, x)


def test_gradient(x):
    x.requires_grad_()
    scale(x, 3.0).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 3.0))


def test_fake_tensors_are_only_traced():
    got = scale(torch.empty(64, 32, dtype=torch.bfloat16, device="meta"), 2.0)
    assert got.device.type == "meta" and got.shape == (64, 32) and got.dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_opcheck(device):
    sample = torch.randn(64, 32, device=device)
    checks = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    if device == "cpu":
        checks.append("test_autograd_registration")  # PyTorch's own check knows CPU, CUDA and XPU only
    torch.library.opcheck(scale, (sample.clone().requires_grad_(), 2.0), test_utils=checks)
    torch.library.opcheck(add_into_op, (sample, sample.clone()), test_utils=checks)


def test_compiled_as_one_node(x):
    graphs = []

    def look(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(lambda t: scale(t + 1, 2.0) - 1, backend=look, fullgraph=True)
    torch.testing.assert_close(compiled(x), (x + 1) * 2 - 1)
    assert sum("scale" in target for target in graphs[0]) == 1


def test_same_inputs_same_bits(x):
    big = torch.randn(128, 512)
    assert torch.equal(scale_kernel(big, 0.3), scale_kernel(big, 0.3))


@dataclasses.dataclass
class Sizes(nl.NKIObject):  # type: ignore[misc]
    rows: int
    columns: int
    spare: int


@dataclasses.dataclass
class Whole(nl.NKIObject):  # type: ignore[misc]
    rows: int
    columns: int

    def __init__(self, size):
        self.rows = self.columns = size


def test_objects_as_arguments(x):
    """A dataclass of NKIObject may leave out fields without a default, as AWS's kernel library does."""

    @nki.jit
    def corner(x, sizes):
        out = nl.ndarray((sizes.rows, sizes.columns), x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x[0 : sizes.rows, 0 : sizes.columns]))
        return out

    with pytest.warns(nki.NkiWarning, match="Sizes: spare not given, so None"):
        sizes = Sizes(rows=8, columns=4)
    torch.testing.assert_close(corner(x, sizes), x[:8, :4])
    corner(x, Sizes(8, 4, spare=1))
    corner(x, Sizes(8, 4, spare=1))
    corner(x, Whole(8))
    assert len(corner._cache) == 3


@dataclasses.dataclass
class Untyped(nl.NKIObject):  # type: ignore[misc]
    rows: int = 4
    columns = None


def test_attributes_without_a_type_are_fields_too():
    """AWS's kernel library gives them by keyword."""
    assert (Untyped(columns=3).columns, Untyped(2).columns, Untyped(2, columns=1).rows) == (3, None, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        Untyped(depth=1)

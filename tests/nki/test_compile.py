"""Kernels called directly in compiled graphs: one node, shapes from the trace, writes, gradients."""

import dataclasses

import nki
import nki.isa as nisa
import nki.language as nl
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from tests.nki.small_kernels import add_into
from torch_neuronx import nki_op, wrap_nki


@dataclasses.dataclass(frozen=True)
class Options:
    factor: float = 2.0


@nki.jit
def scale(x, factor=2.0, bias=None, op=nl.multiply, options=None):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, op, options.factor if options else factor)
    if bias is not None:
        nisa.tensor_tensor(tile, tile, nl.load(bias), nl.add)
    nl.store(out, tile)
    return out


@nki.jit
def halves(x):
    """Two outputs; the number of columns of the first does not follow from a size of x alone."""
    first = nl.ndarray((x.shape[0], x.shape[1] // 2), x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((x.shape[0], 1), x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nl.store(first, tile[:, : x.shape[1] // 2])
    nl.store(total, nl.sum(tile, axis=1, keepdims=True))
    return {"first": first, "total": total}


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compiled(function, **options):
    return torch.compile(function, backend="neuron", fullgraph=True, **options)


def graphs_of(function, *inputs, dynamic=None):
    """The operators of the ATen graph behind ``function``."""
    found = []

    def look(graph, _):
        found.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    from torch._dynamo.backends.common import aot_autograd

    torch.compile(function, backend=aot_autograd(fw_compiler=look), fullgraph=True, dynamic=dynamic)(*inputs)
    return found


def rows(n, columns=32):
    return torch.randn(n, columns, device="neuron")


OPTIONS = Options(4.0)


def test_arguments():
    """Tensors by position and by name, numbers, None, functions, dataclasses, a number of cores."""

    def function(t):
        return (
            scale(t + 1) - 1,
            scale(t, bias=t, factor=3.0),
            scale(t, 5.0, None, nl.add),
            scale(t, options=OPTIONS),
            wrap_nki(scale)[2](t),
        )

    x = rows(8)
    for found, expected in zip(compiled(function)(x), (2 * x + 1, 4 * x, x + 5, 4 * x, 2 * x), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_kernel_is_one_node():
    kernel = nki.jit(scale.func)
    (found,) = graphs_of(lambda t: kernel(t + 1) - 1, rows(8))
    assert found == ["aten.add.Tensor", "nki.kernel.default", "<built-in function getitem>", "aten.sub.Tensor"]


def test_the_first_trace_may_happen_in_a_graph():
    """What is made for a kernel while PyTorch traces with fake tensors serves real ones afterwards, and the other way round."""
    kernel = nki.jit(scale.func)
    x = rows(8)
    torch.testing.assert_close(compiled(lambda t: kernel(t))(x), 2 * x)
    torch.testing.assert_close(kernel(x), 2 * x)
    assert len(kernel._cache) == 1


def test_one_graph_for_all_sizes():
    kernel = nki.jit(scale.func)
    run = compiled(lambda t: kernel(t + 1), dynamic=True)
    for n in (8, 16, 64, 3):
        x = rows(n)
        torch.testing.assert_close(run(x), 2 * x + 2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_size_that_is_not_an_arguments_is_a_constant_of_the_graph():
    run = compiled(lambda t: halves(t)["first"] * 2, dynamic=True)
    for columns in (32, 64):
        x = rows(8, columns)
        torch.testing.assert_close(run(x), 2 * x[:, : columns // 2])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_structure_of_the_result():
    x = rows(8)
    got = compiled(lambda t: halves(t))(x)
    torch.testing.assert_close(got["first"], x[:, :16])
    torch.testing.assert_close(got["total"], x.sum(1, keepdim=True))


@pytest.mark.parametrize("dynamic", [pytest.param(None, marks=pytest.mark.full), True])
def test_writes_to_arguments(dynamic):
    def accumulate(x, total):
        result = add_into(x * 2, total)
        return total + 1, result

    x, total = rows(8), rows(8)
    want = total + 2 * x
    got, result = compiled(accumulate, dynamic=dynamic)(x, total)
    assert result is None
    torch.testing.assert_close(total, want)
    torch.testing.assert_close(got, want + 1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scale(x, 3.0)

    @staticmethod
    def backward(ctx, grad):
        return scale(grad, 3.0)


@nki_op("nki_compile_test::scale", mutates_args={})
def scale_op(x: torch.Tensor, factor: float) -> torch.Tensor:
    return nki.jit(scale.func)(x, factor)


scale_op.register_autograd(
    lambda ctx, grad: (scale_op(grad, ctx.factor), None), setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1])
)


@pytest.mark.parametrize("function", [Scaled.apply, lambda t: scale_op(t, 3.0)], ids=["autograd.Function", "register_autograd"])
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.full)])
def test_gradient(function, dynamic):
    x = rows(8).requires_grad_()
    compiled(lambda t: function(t * 2).sum(), dynamic=dynamic)(x).backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 6.0))


def test_a_gradient_that_does_not_exist_is_an_error():
    x = rows(8).requires_grad_()
    with pytest.raises(NotImplementedError, match=r"scale has no gradient.*register_autograd"):
        scale(x).sum().backward()


@nki.jit
def add_and_count(x, total):
    tile = nl.load(total)
    nisa.tensor_tensor(tile, tile, nl.load(x), nl.add)
    nl.store(total, tile)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@pytest.mark.parametrize("run", [add_and_count, compiled(lambda x, total: add_and_count(x, total))], ids=["eager", "compiled"])
def test_nor_has_a_kernel_that_writes_a_gradient(run):
    x, total = rows(8), rows(8)
    want = x + total
    with torch.no_grad():
        torch.testing.assert_close(run(x.requires_grad_(), total), want)
    with pytest.raises((NotImplementedError, BackendCompilerFailed), match=r"add_and_count has no gradient.*register_autograd"):
        run(x, total).sum().backward()


def test_results_of_a_kernel_that_writes_may_be_changed():
    x, total = rows(8), rows(8)
    want = (x + total) * 2
    torch.testing.assert_close(add_and_count(x.requires_grad_(), total).mul_(2).detach(), want)


def test_explain_names_the_cut():
    with torch.neuron.explain() as report:
        compiled(lambda t: scale(t + 1) - 1)(rows(8))
    (graph,) = report.as_dict()["compile"]["graphs"]
    assert graph["programs"] == 2 and graph["cuts"] == {"custom operator nki::kernel": 1}


def test_export_has_the_operator():
    class Model(torch.nn.Module):
        def forward(self, x):
            return scale(x + 1)

    program = torch.export.export(Model(), (rows(8),))
    assert "nki.kernel.default" in str(program.graph)


def test_a_graph_from_elsewhere_is_refused():
    with pytest.raises(RuntimeError, match=r"none of this process.*nki_op"):
        torch.ops.nki.kernel("scale#99999", [rows(8)], [])


@pytest.mark.parametrize(
    "mode",
    [torch.inference_mode, lambda: torch.device("neuron"), lambda: torch.autocast("cpu", dtype=torch.bfloat16), "default dtype"],
    ids=["inference mode", "default device", "autocast", "default dtype"],
)
def test_what_the_caller_has_switched_on_does_not_reach_the_simulator(mode):
    @nki.jit
    def product(a, b):
        out = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
        psum = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, nl.load(a), nl.load(b))
        tile = nl.ndarray((32, 32), nl.float32)
        nisa.activation(tile, nl.exp, psum, scale=0.01)
        nl.store(out, tile)
        return out

    a, b = torch.randn(32, 32), torch.randn(32, 32)
    want = torch.exp((a.T @ b) * 0.01)
    if mode == "default dtype":
        torch.set_default_dtype(torch.float64)
        try:
            first = product(a, b)
        finally:
            torch.set_default_dtype(torch.float32)
    else:
        with mode():
            first = product(a, b)
    second = product(a, b)
    assert torch.equal(first.cpu(), second)
    torch.testing.assert_close(second, want)

"""Which backend torch.compile takes: `neuron` for neuron's tensors, and what it always took for all others."""

import pytest
import torch

# Prints which backend compiles a graph on each device, when torch.compile is not told.
WHICH = """
import torch_neuronx.compile.backend as ours
def note(owner, name, what):
    setattr(owner, name, lambda *args: print(what) or next(arg for arg in args if isinstance(arg, torch.fx.GraphModule)).forward)
note(ours, "compile_graph", "neuron")
note(torch._TorchCompileInductorWrapper, "__call__", "inductor")
f = torch.compile(lambda x: x + 1)
assert f(torch.ones(2, device="neuron")).tolist() == [2, 2]
assert f(torch.ones(2)).tolist() == [2, 2]
"""


@pytest.mark.parametrize(
    "imports",
    ["import torch", "import torch, torch._dynamo", "import torch._dynamo", "import torch_neuronx", "import torch_neuronx, torch"],
)
def test_any_import_order(run_python, imports):
    run = run_python(f"{imports}\nimport torch\n{WHICH}", timeout=180)
    assert run.stdout.split() == ["neuron", "inductor"], run.stderr


def test_dynamo_imported_before_the_device_is_loaded(run_python):
    run = run_python(f"import torch, torch._dynamo, torch_neuronx\n{WHICH}", timeout=180, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert run.stdout.split() == ["neuron", "inductor"], run.stderr


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_users_default_stays(run_python, when):
    code = """
import torch, sys
def mine(gm, inputs):
    print("mine")
    return gm.forward
{before}
import torch_neuronx
{after}
print(torch.compile(lambda x: x + 1)(torch.ones(2, device="neuron")).tolist())
"""
    choose = "torch.compiler.set_default_backend(mine)"
    code = code.format(before=choose if when == "before" else "", after=choose if when == "after" else "")
    run = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0" if when == "before" else "1")
    assert run.stdout.split("\n")[:2] == ["mine", "[2.0, 2.0]"], run.stderr


def test_cpu_graphs_keep_mode_and_options(monkeypatch):
    from torch_neuronx.compile import default

    seen = []

    class Inductor:
        def __init__(self, mode, options, dynamic):
            seen.append((mode, options))

        def __call__(self, gm, inputs):
            return gm.forward

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Inductor)
    assert torch.compiler.get_default_backend() is default.select
    torch.compile(lambda x: x + 1, mode="max-autotune")(torch.ones(2))
    torch.compile(lambda x: x + 2, options={"max_autotune": True})(torch.ones(2))
    assert seen == [("max-autotune", None), (None, {"max_autotune": True})]


def test_factories_alone_decide():
    assert torch.compile(lambda: torch.ones(3, device="neuron") * 2)().tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "neuron"])
def test_other_backends_run_on_the_device(backend):
    x = torch.randn(3, 4, device="neuron", requires_grad=True)
    y = torch.compile(lambda x: (x @ x.T).relu().sum(), backend=backend, fullgraph=True)(x)
    y.backward()
    (expected,) = torch.autograd.grad((x @ x.T).relu().sum(), x)
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("body", ["x + 1", "x.sum(0)", "x @ x", "x.softmax(1)", "torch.cat([x, x]).sort(0)"])
def test_inductor_refuses_and_names_the_backend(body):
    function = eval(f"lambda x: {body}", {"torch": torch})
    with pytest.raises(Exception, match=r'Inductor has no code generator for device "neuron".*backend="neuron"'):
        torch.compile(function, backend="inductor")(torch.ones(3, 3, device="neuron"))


def test_it_is_listed():
    assert "neuron" in torch.compiler.list_backends()

"""PyTorch's Python features around modules and autograd, on the device: checkpointing, hooks, parametrisations, pruning, packaging, JIT,
export, DataParallel, deterministic and anomaly mode, the profiler's CPU side."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils import checkpoint

from tests.threads import on_threads

DEVICE = "neuron"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(torch.relu(self.first(x)))) * self.scale


def twins(model: nn.Module) -> tuple[Any, Any]:
    return model, copy.deepcopy(model).to(DEVICE)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.cpu() for p in model.parameters() if p.grad is not None]


def assert_all_close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(actual) == len(expected) > 0
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach().cpu(), rtol=1e-4, atol=1e-5)


# ---- Autograd ----


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_replays_dropout(use_reentrant: bool) -> None:
    model = Mlp(dropout=0.5).to(DEVICE)
    x = torch.randn(32, 6, device=DEVICE, requires_grad=True)

    def run(checkpointed: bool) -> list[torch.Tensor]:
        torch.manual_seed(7)
        model.zero_grad()
        x.grad = None
        out = checkpoint.checkpoint(model, x, use_reentrant=use_reentrant) if checkpointed else model(x)
        torch.rand(5, device=DEVICE)  # the backward must restore the state of the forward, not continue from here
        out.square().sum().backward()
        assert x.grad is not None
        return [x.grad.clone(), *gradients(model)]

    plain = run(False)
    state = torch.neuron.get_rng_state()
    assert_all_close(run(True), plain)
    assert torch.equal(torch.neuron.get_rng_state(), state)


def test_checkpoint_early_stop_and_selective() -> None:
    x = torch.randn(4, 4, device=DEVICE, requires_grad=True)
    calls = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.device.type)
        return (x @ x).relu().cos()

    policy = checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.mm.default])  # type: ignore[attr-defined]
    out = checkpoint.checkpoint(function, x, use_reentrant=False, context_fn=lambda: policy)
    out.sum().backward()
    assert calls == [DEVICE, DEVICE]
    y = x.detach().clone().requires_grad_()
    (y @ y).relu().cos().sum().backward()
    assert x.grad is not None and y.grad is not None
    assert_all_close([x.grad], [y.grad])


def test_checkpoint_sequential() -> None:
    model, twin = twins(nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]))
    x = torch.randn(3, 6)
    model(x).sum().backward()
    checkpoint.checkpoint_sequential(twin, 2, x.to(DEVICE).requires_grad_(), use_reentrant=False).sum().backward()
    assert_all_close(gradients(twin), gradients(model))


@pytest.mark.parametrize("pin", [False, True])
def test_save_on_cpu(pin: bool) -> None:
    model, twin = twins(Mlp())
    x = torch.randn(5, 6)
    model(x).sum().backward()
    with torch.autograd.graph.save_on_cpu(pin_memory=pin, device_type=DEVICE):
        out = twin(x.to(DEVICE))
    out.sum().backward()
    assert_all_close(gradients(twin), gradients(model))


def test_saved_tensors_hooks_see_device_tensors() -> None:
    seen = []
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.device.type) or t.clone(), lambda t: t):  # type: ignore[func-returns-value]
        y = x.exp() * x
    y.sum().backward()
    assert seen and set(seen) == {DEVICE}


def test_tensor_hooks() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    log: list[str] = []
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.retain_grad()
    x.register_post_accumulate_grad_hook(lambda p: log.append(f"accumulated {p.grad.tolist()}"))
    node = y.grad_fn
    assert node is not None
    node.register_prehook(lambda grads: log.append("before"))
    node.register_hook(lambda inputs, outputs: log.append("after"))
    torch.autograd.graph.register_multi_grad_hook((x, y), lambda grads: log.append("both"))
    y.sum().backward()
    assert log.index("before") < log.index("after") < log.index("accumulated [20.0, 20.0, 20.0]")
    assert "both" in log and y.grad is not None and y.grad.tolist() == [10, 10, 10]


def test_module_hooks() -> None:
    model = Mlp().to(DEVICE)
    log: list[tuple[str, str]] = []
    model.first.register_forward_pre_hook(lambda m, args: log.append(("pre", args[0].device.type)))
    model.first.register_forward_hook(lambda m, args, out: out * 0 + 1)
    model.second.register_full_backward_pre_hook(lambda m, g: log.append(("back pre", g[0].device.type)))
    model.second.register_full_backward_hook(lambda m, gi, go: log.append(("back", gi[0].device.type)))
    out = model(torch.randn(2, 6, device=DEVICE))
    torch.testing.assert_close(out, model.second(torch.ones(2, 8, device=DEVICE)) * 2)
    out.sum().backward()
    assert log == [("pre", DEVICE), ("back pre", DEVICE), ("back", DEVICE)]


def test_anomaly_mode() -> None:
    x = torch.zeros(3, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=r"SqrtBackward0.*nan"):
            (x.sqrt() * 0).sum().backward()
        with torch.autograd.detect_anomaly():
            (x + 1).sqrt().sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_inplace_on_a_saved_tensor_is_found() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_graph_is_freed() -> None:
    x = torch.ones(1000, device=DEVICE, requires_grad=True)
    kept = x * 2
    gone = weakref.ref(kept)
    loss = (kept * kept).sum()
    del kept
    loss.backward()
    del loss
    gc.collect()
    assert gone() is None


def test_inference_mode() -> None:
    with torch.inference_mode():
        y = torch.ones(3, device=DEVICE) * 2
    assert y.is_inference()
    assert (y + 1).tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        y.add_(1)


def test_backward_in_threads() -> None:
    """Three host threads share parameters; gradients accumulate."""
    weight = torch.ones(4, device=DEVICE, requires_grad=True)

    def work(_: int) -> None:
        for _ in range(5):
            (weight * 2).sum().backward()

    on_threads(work, 3)
    assert weight.grad is not None and weight.grad.tolist() == [30] * 4


# ---- nn.utils ----

PARAMETRISATIONS: dict[str, Callable[[Any], Any]] = {
    "spectral": lambda m: parametrizations.spectral_norm(m.first),
    "weight": lambda m: parametrizations.weight_norm(m.first),
    "orthogonal": lambda m: parametrizations.orthogonal(m.first, orthogonal_map="householder"),
    "cayley": lambda m: parametrizations.orthogonal(m.first, orthogonal_map="cayley"),
    "old spectral": lambda m: nn.utils.spectral_norm(m.first),
    "old weight": lambda m: nn.utils.weight_norm(m.first),
    "own": lambda m: parametrize.register_parametrization(m.first, "weight", nn.Tanh()),
}


@pytest.mark.parametrize("name", PARAMETRISATIONS)
@pytest.mark.filterwarnings("ignore")
def test_parametrisations(name: str) -> None:
    model: Any = Mlp()
    PARAMETRISATIONS[name](model)
    twin: Any = Mlp()
    PARAMETRISATIONS[name](twin)
    twin.load_state_dict(model.state_dict())
    if name in ("orthogonal", "cayley"):  # its fixed base is kept in a buffer, which the state has
        twin.load_state_dict(model.state_dict())
    twin = twin.to(DEVICE)
    x = torch.randn(5, 6)
    for each, data in ((model, x), (twin, x.to(DEVICE))):
        each.train()
        each(data).square().sum().backward()
    assert_all_close([twin.first.weight], [model.first.weight])
    assert_all_close(gradients(twin), gradients(model))
    if name == "own":
        parametrize.remove_parametrizations(twin.first, "weight")
        assert isinstance(twin.first.weight, nn.Parameter) and twin.first.weight.device.type == DEVICE


def test_parametrisation_registered_on_the_device() -> None:
    makers: list[Callable[[Any], Any]] = [parametrizations.spectral_norm, parametrizations.weight_norm, parametrizations.orthogonal]
    for make in makers:
        layer = make(nn.Linear(4, 4).to(DEVICE))
        out = layer(torch.randn(2, 4, device=DEVICE))
        out.sum().backward()
        assert out.device.type == DEVICE and all(p.grad is not None for p in layer.parameters())
    q: Any = parametrizations.orthogonal(nn.Linear(4, 4).to(DEVICE)).weight
    torch.testing.assert_close((q @ q.mT).cpu(), torch.eye(4), rtol=1e-5, atol=1e-5)


PRUNERS: dict[str, Callable[[Any], Any]] = {
    "l1": lambda m: prune.l1_unstructured(m.first, "weight", amount=0.5),
    "structured": lambda m: prune.ln_structured(m.first, "weight", amount=0.25, n=2, dim=0),
    "global": lambda m: prune.global_unstructured([(m.first, "weight"), (m.second, "weight")], prune.L1Unstructured, amount=10),
    "identity": lambda m: prune.identity(m.first, "weight"),
}


@pytest.mark.parametrize("name", PRUNERS)
def test_pruning(name: str) -> None:
    model, twin = twins(Mlp())
    x = torch.randn(5, 6)
    for each, data in ((model, x), (twin, x.to(DEVICE))):
        PRUNERS[name](each)
        each(data).sum().backward()
    assert torch.equal(twin.first.weight_mask.cpu(), model.first.weight_mask)
    assert_all_close(gradients(twin), gradients(model))
    prune.remove(twin.first, "weight")
    assert not prune.is_pruned(twin.first)


def test_random_pruning_stays_on_the_device() -> None:
    layer: Any = nn.Linear(16, 16).to(DEVICE)
    prune.random_unstructured(layer, "weight", amount=0.5)
    assert layer.weight_mask.device.type == DEVICE and layer.weight_mask.sum() == 128


def test_other_utilities() -> None:
    model, twin = twins(Mlp())
    x = torch.randn(5, 6) * 10
    for each, data in ((model, x), (twin, x.to(DEVICE))):
        each(data).square().sum().backward()
    for options in ({"foreach": True}, {"foreach": False}, {"norm_type": float("inf")}, {"norm_type": 1.0}):
        norms = [nn.utils.clip_grad_norm_(each.parameters(), 3.0, **options) for each in (model, twin)]  # type: ignore[arg-type]
        assert_all_close([norms[1]], [norms[0]])
    for each in (model, twin):
        nn.utils.clip_grad_value_(each.parameters(), 0.1)
    assert_all_close(gradients(twin), gradients(model))
    flat = nn.utils.parameters_to_vector(twin.parameters())
    assert_all_close([flat], [nn.utils.parameters_to_vector(model.parameters())])
    nn.utils.vector_to_parameters(torch.zeros_like(flat), twin.parameters())
    assert all(not p.any() for p in twin.parameters())
    twin.first.weight.grad = torch.full_like(twin.first.weight, float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0, error_if_nonfinite=True)


def test_skip_init_fuse_and_stateless() -> None:
    layer = nn.utils.skip_init(nn.Linear, 4, 3, device=DEVICE)
    assert layer.weight.device.type == DEVICE and layer.weight.shape == (3, 4)
    conv, norm = nn.Conv2d(2, 4, 3).to(DEVICE).eval(), nn.BatchNorm2d(4).to(DEVICE).eval()
    x = torch.randn(1, 2, 6, 6, device=DEVICE)
    torch.testing.assert_close(nn.utils.fuse_conv_bn_eval(conv, norm)(x), norm(conv(x)), rtol=1e-4, atol=1e-5)


def test_packed_sequences() -> None:
    model, twin = twins(nn.LSTM(4, 5, batch_first=True))
    x, lengths = torch.randn(3, 7, 4), torch.tensor([7, 3, 5])
    results = []
    for each, data in ((model, x), (twin, x.to(DEVICE))):
        packed = nn.utils.rnn.pack_padded_sequence(data, lengths, batch_first=True, enforce_sorted=False)
        out, sizes = nn.utils.rnn.pad_packed_sequence(each(packed)[0], batch_first=True)
        assert sizes.tolist() == lengths.tolist()
        results.append(out)
    assert_all_close([results[1]], [results[0]])
    padded = nn.utils.rnn.pad_sequence([torch.ones(n, device=DEVICE) for n in (3, 1)])
    assert padded.shape == (3, 2) and padded.device.type == DEVICE


# ---- Moving, copying, naming ----


def test_to_empty_meta_and_lazy() -> None:
    with torch.device("meta"):
        model = Mlp()
    model = model.to_empty(device=DEVICE)
    assert all(p.device.type == DEVICE for p in model.parameters())
    source = Mlp()
    with torch.device("meta"):
        model = Mlp()
    model.load_state_dict({name: value.to(DEVICE) for name, value in source.state_dict().items()}, assign=True)
    assert model.first.weight.device.type == DEVICE
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).to(DEVICE)
    assert lazy(torch.randn(4, 6, device=DEVICE)).device.type == DEVICE
    assert lazy[0].weight.shape == (3, 6)


def test_device_contexts_and_defaults() -> None:
    with torch.device(DEVICE):
        assert torch.ones(2).device.type == DEVICE and nn.Linear(2, 2).weight.device.type == DEVICE
        assert torch.tensor([1.0]).device.type == DEVICE
        with torch.device("cpu"):
            assert torch.ones(2).device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"
    try:
        torch.set_default_device(DEVICE)
        assert torch.randn(2).device.type == DEVICE and torch.get_default_device().type == DEVICE
    finally:
        torch.set_default_device(None)


def test_copies() -> None:
    model = Mlp().to(DEVICE)
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_all_close(list(clone.parameters()), list(model.parameters()))
        assert clone.first.weight.device.type == DEVICE and clone.first.weight.data_ptr() != model.first.weight.data_ptr()
    a, b = torch.zeros(2, device=DEVICE), torch.ones(3, device=DEVICE)
    torch.utils.swap_tensors(a, b)
    assert a.tolist() == [1, 1, 1] and b.tolist() == [0, 0]
    previous = torch.__future__.get_swap_module_params_on_conversion()
    try:
        torch.__future__.set_swap_module_params_on_conversion(True)
        moved = Mlp()
        weight = moved.first.weight
        assert moved.to(DEVICE).first.weight is weight and weight.device.type == DEVICE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(previous)


def test_numpy() -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    with pytest.raises(TypeError, match=r"neuron:0 device type tensor to numpy"):
        x.numpy()
    assert np.array_equal(x.numpy(force=True), np.arange(6.0).reshape(2, 3))
    assert torch.equal(torch.as_tensor(np.arange(3), device=DEVICE), torch.arange(3, device=DEVICE))
    assert np.asarray(x.cpu()).shape == (2, 3)


def test_subclass_and_torch_function() -> None:
    class Tagged(torch.Tensor):
        pass

    x = torch.ones(3, device=DEVICE).as_subclass(Tagged)
    assert type(x + 1) is Tagged and (x + 1).tolist() == [2, 2, 2]

    calls = []

    class Log(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    with Log():
        torch.ones(2, device=DEVICE).exp()
    assert "exp" in calls


def test_dispatch_modes() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    seen = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    model = Mlp().to(DEVICE)
    with Record():
        model(torch.randn(2, 6, device=DEVICE)).sum().backward()
    assert "aten.addmm.default" in seen and "aten.mm.default" in seen
    with FlopCounterMode(display=False) as flops:
        model(torch.randn(2, 6, device=DEVICE))
    assert flops.get_total_flops() == 2 * 2 * (6 * 8 + 8 * 3)


# ---- Packaging, JIT, export ----


def test_package(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(DEVICE)
    with torch.package.PackageExporter(tmp_path / "model.pt") as exporter:
        exporter.extern("torch.**")
        exporter.save_pickle("model", "model.pkl", model)
    loaded = torch.package.PackageImporter(tmp_path / "model.pt").load_pickle("model", "model.pkl")
    x = torch.randn(2, 4, device=DEVICE)
    assert loaded[0].weight.device.type == DEVICE and torch.equal(loaded(x), model(x))
    on_cpu = torch.package.PackageImporter(tmp_path / "model.pt").load_pickle("model", "model.pkl", map_location="cpu")
    assert on_cpu[0].weight.device.type == "cpu"


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.filterwarnings("ignore")
def test_jit(how: str) -> None:
    model = Mlp().to(DEVICE)
    x = torch.randn(4, 6, device=DEVICE)
    compiled = torch.jit.script(model) if how == "script" else torch.jit.trace(model, x)
    expected = model(x)
    for _ in range(3):  # the profiling executor specialises after the first runs
        torch.testing.assert_close(compiled(x), expected)
    compiled(x).sum().backward()
    assert_all_close(gradients(compiled), gradients(model) or [p.grad.cpu() for p in compiled.parameters() if p.grad is not None])
    buffer = io.BytesIO()
    torch.jit.save(compiled, buffer)
    for location in (None, "cpu", DEVICE):
        buffer.seek(0)
        loaded = torch.jit.load(buffer, map_location=location)
        device = location or DEVICE
        torch.testing.assert_close(loaded(x.to(device)).cpu(), expected.cpu())
    frozen = torch.jit.freeze(compiled.eval())
    torch.testing.assert_close(frozen(x), expected)


@pytest.mark.filterwarnings("ignore")
def test_jit_control_flow_and_devices() -> None:
    @torch.jit.script
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        total = torch.zeros_like(x)
        for i in range(n):
            total = total + x * i if bool((x > 0).any()) else total - x
        return total.to(torch.device("neuron"))

    x = torch.ones(3, device=DEVICE)
    assert function(x, 4).tolist() == [6, 6, 6] and function(-x, 4).tolist() == [4, 4, 4]


@pytest.mark.parametrize("dynamic", [False, True])
def test_export(dynamic: bool) -> None:
    model = Mlp().to(DEVICE)
    x = torch.randn(4, 6, device=DEVICE)
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64)}} if dynamic else None
    program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(x), model(x))
    if dynamic:
        y = torch.randn(9, 6, device=DEVICE)
        torch.testing.assert_close(program.module()(y), model(y))
    placed = [n.meta["val"].device.type for n in program.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert set(placed) == {DEVICE}
    decomposed = program.run_decompositions()
    torch.testing.assert_close(decomposed.module()(x), model(x))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.export.load(buffer).module()(x), model(x))


def test_fx() -> None:
    model = Mlp().to(DEVICE)
    x = torch.randn(4, 6, device=DEVICE)
    traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(x), model(x))
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(t: torch.Tensor) -> torch.Tensor:
        return (t @ t.mT).relu().sum()

    for mode in ("real", "fake", "symbolic"):
        torch.testing.assert_close(make_fx(function, tracing_mode=mode)(x)(x), function(x))


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.empty(4, 6, device=DEVICE)
        assert x.device == torch.device(DEVICE, 0) and (x @ x.mT).shape == (4, 4)
        assert (x + torch.ones((), device="cpu")).device.type == DEVICE
        assert x.cpu().device.type == "cpu"
    real = torch.ones(2, device=DEVICE)
    assert mode.from_tensor(real).device == real.device


# ---- Several devices, modes ----


def test_deterministic_mode() -> None:
    x = torch.randn(200, device=DEVICE)
    index = torch.randint(0, 10, (200,), device=DEVICE)

    def run() -> torch.Tensor:
        return torch.zeros(10, device=DEVICE).index_add(0, index, x)

    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        assert torch.equal(run(), run())
        assert torch.isnan(torch.empty(3, device=DEVICE)).all()  # uninitialised memory is filled
        assert torch.isnan(torch.empty(3, device=DEVICE).resize_(100)[3:]).all()
        a, b = torch.zeros(10, device=DEVICE), torch.zeros(10, device=DEVICE)
        for t in (a, b):
            t.index_put_((index,), x, accumulate=True)
        assert torch.equal(a, b)
    finally:
        torch.use_deterministic_algorithms(before)


def test_profiler_on_the_cpu() -> None:
    model = Mlp().to(DEVICE)
    x = torch.randn(4, 6, device=DEVICE)
    for with_stack in (False, True):
        with torch.profiler.profile(record_shapes=True, with_stack=with_stack, profile_memory=True) as profile:
            with torch.profiler.record_function("step"):
                model(x).sum().backward()
            torch.neuron.synchronize()
        averages = profile.key_averages()
        assert {"aten::addmm", "step"} <= {event.key for event in averages}
        assert "aten::addmm" in averages.table(sort_by="cpu_time_total", row_limit=-1)
    with torch.autograd.profiler.profile() as old:
        model(x)
    assert any(event.name == "aten::addmm" for event in old.function_events or [])


def test_profiler_schedule_and_trace(tmp_path: Path) -> None:
    x = torch.randn(4, device=DEVICE)
    path = tmp_path / "trace.json"
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as profile:
        for _ in range(4):
            x.exp()
            profile.step()
    assert "aten::exp" in path.read_text()

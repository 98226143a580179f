"""``import torch`` loads the backend: quietly, cheaply, without changing torch, and without ever making the import fail."""

import json
import shutil
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "torch_neuronx"

# Prints what all public names of torch's modules and classes are, so that a replaced function shows as well as a new one.
DESCRIBE = """
import json, sys
import torch
import torch.nn.utils.rnn, torch.profiler, torch.amp, torch.accelerator
if sys.argv[1:] == ["load"]:
    import torch_neuronx

def identity(value):
    kind = type(value).__name__
    if kind == "function":
        return f"function {value.__qualname__} {value.__code__.co_filename}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    return f"{kind} {value}" if isinstance(value, (bool, int, float, str)) else kind

def public(owner):
    return {name: identity(value) for name, value in list(vars(owner).items()) if not name.startswith("_")}

found = {}
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] != "torch" or name.startswith("torch.neuron"):
        continue
    found[name] = public(module)
    for attribute, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__.split(".")[0] == "torch":
            found[f"{value.__module__}:{value.__qualname__}"] = public(value)
print(json.dumps(found))
"""

# The generated methods and the two enum names that torch's own rename_privateuse1_backend() adds.
ALLOWED = {
    "torch.distributed.distributed_c10d:Backend": {"NEURON"},  # Backend.register_backend()
    "torch": {"neuron"},
    "torch:Tensor": {"neuron", "is_neuron"},
    "torch._tensor:Tensor": {"neuron", "is_neuron"},
    "torch.nn.modules.module:Module": {"neuron"},
    "torch.nn.utils.rnn:PackedSequence": {"neuron", "is_neuron"},
    "torch.storage:TypedStorage": {"neuron", "is_neuron"},
    "torch.storage:UntypedStorage": {"neuron", "is_neuron"},
    "torch.storage:_StorageBase": {"neuron", "is_neuron"},
    "torch._C._profiler:ProfilerActivity": {"NEURON"},
    "torch._C._autograd:DeviceType": {"NEURON"},
}


def test_torch_is_the_same_but_for_what_is_allowed(run_python):
    without = run_python(DESCRIBE, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    loaded = run_python(DESCRIBE)
    assert without.returncode == 0 and loaded.returncode == 0, without.stderr + loaded.stderr
    before, after = json.loads(without.stdout), json.loads(loaded.stdout)
    assert "neuron" in after["torch"]
    different = {}
    for owner in before.keys() | after.keys():
        old, new = before.get(owner, {}), after.get(owner, {})
        changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        if owner in ("torch._C._profiler:ProfilerActivity", "torch._C._autograd:DeviceType"):
            changed -= {"name"}  # which rename_privateuse1_backend() replaces, so that it gives NEURON
        if changed - ALLOWED.get(owner, set()):
            different[owner] = sorted(changed - ALLOWED.get(owner, set()))
    assert not different


def test_nothing_is_printed_or_opened_and_no_compiler_is_imported(run_python):
    code = """
import sys, torch
assert not torch.neuron.is_initialized() and torch.neuron._initialized is False
print(*[name for name in ("torch._dynamo", "torch._inductor", "jax", "jaxlib", "numpy.testing") if name in sys.modules])
"""
    run = run_python(code)
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "", "")


def test_questions_open_nothing(run_python):
    code = """
import torch
torch.manual_seed(3)
torch.accelerator.current_accelerator(), torch.accelerator.device_count()
torch.neuron.device_count(), torch.neuron.current_device(), torch.neuron.get_rng_state(0), torch.neuron.current_stream(1)
x = torch.ones(3, requires_grad=True); (x * x).sum().backward()
torch.neuron.synchronize()
print(torch.neuron.is_initialized())
torch.empty(1, device="neuron")
print(torch.neuron.is_initialized(), torch.neuron._initialized)
"""
    run = run_python(code)
    assert run.stdout.split() == ["False", "True", "True"], run.stderr


@pytest.mark.parametrize("first, second", [("torch", "torch_neuronx"), ("torch_neuronx", "torch")])
@pytest.mark.parametrize("autoload", ["1", "0"])
def test_either_import_order(run_python, first, second, autoload):
    code = f"import {first}, {second}; print(torch_neuronx is torch.neuron, torch_neuronx.device_count() > 0, torch.device('neuron:1'))"
    run = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert run.stdout.split() == ["True", "True", "neuron:1"], run.stderr


def test_the_package_alone_is_enough(run_python):
    run = run_python("import torch_neuronx as t; print(t.is_available(), t.Stream().device)")
    assert run.stdout.split() == ["True", "neuron:0"], run.stderr


def test_autoload_twice_is_once(run_python):
    run = run_python(
        "import torch, torch_neuronx; torch_neuronx._autoload(); torch_neuronx._autoload(); print(torch.neuron.is_available())"
    )
    assert run.stdout.split() == ["True"], run.stderr


def test_submodules_are_one_object_under_both_names(run_python):
    code = """
import torch, torch.neuron.streams, torch.neuron.memory, torch_neuronx.streams
print(torch.neuron.streams.Stream is torch_neuronx.Stream, torch_neuronx.streams.Stream is torch.neuron.Stream)
"""
    run = run_python(code)
    assert run.stdout.split() == ["True", "True"], run.stderr


def test_unknown_attribute():
    import torch

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        torch.neuron.nonsense  # noqa: B018
    for name, remedy in (("MemPool", "torch.accelerator.Graph"), ("nvtx", "record_function"), ("FloatTensor", "x.dtype")):
        assert not hasattr(torch.neuron, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'.*{remedy}"):
            getattr(torch.neuron, name)


def test_what_cuda_has_is_here_or_has_a_substitute():
    """But for what makes no sense without CUDA's libraries."""
    import torch

    from torch_neuronx._absent import INSTEAD

    of_cuda_alone = """
        caching_allocator_disabled caching_allocator_enable check_error CudaError cudaStatus current_blas_handle
        current_solver_handle DeferredCudaCallError device_memory_used get_allocator_backend get_gencode_flags GreenContext
        has_half has_magma is_tf32_supported sparse tunable ComplexDoubleStorage ComplexFloatStorage
    """.split()
    missing = {name for name in torch.cuda.__all__ if not hasattr(torch.neuron, name)}
    assert missing - INSTEAD.keys() <= set(of_cuda_alone), sorted(missing - INSTEAD.keys() - set(of_cuda_alone))
    assert not {name for name in INSTEAD if hasattr(torch.neuron, name)}
    assert torch.neuron.OutOfMemoryError is torch.OutOfMemoryError  # not in torch.cuda.__all__, but scripts catch it


@pytest.fixture
def broken_package(tmp_path: Path) -> Path:
    """A folder with a copy of the package whose library is not one."""
    copy = tmp_path / "torch_neuronx"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "libtorch_neuronx.so"))
    (copy / "libtorch_neuronx.so").write_text("not a library")
    return tmp_path


# Imports the package from the folder in argv[1], however the real one was installed.
USE_COPY = """
import importlib.util, sys
folder = sys.argv[1] + "/torch_neuronx"
spec = importlib.util.spec_from_file_location("torch_neuronx", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["torch_neuronx"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["torch_neuronx"])
import torch
"""


def test_a_broken_library_harms_no_cpu_script(run_python, broken_package):
    code = f"""
{USE_COPY}
torch.manual_seed(0)
x = torch.ones(2, requires_grad=True); (x * x).sum().backward(); print(x.grad.tolist())
print(torch.neuron.is_available(), torch.neuron.device_count(), hasattr(torch.neuron, "Stream"), torch.device("neuron"))
"""
    run = run_python(code, str(broken_package))
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert run.stdout.splitlines() == ["[2.0, 2.0]", "False 0 False neuron"]


@pytest.mark.parametrize(
    "use, exception",
    [
        ("torch.empty(2, device='neuron')", "RuntimeError"),
        ("torch.ones(2).to('neuron')", "RuntimeError"),
        ("torch.neuron.init()", "RuntimeError"),
        ("torch.neuron.synchronize()", "AttributeError"),
    ],
)
def test_a_broken_library_is_explained_at_first_use(run_python, broken_package, use, exception):
    code = f"""
{USE_COPY}
try:
    {use}
except {exception} as error:
    print(error)
"""
    run = run_python(code, str(broken_package))
    assert "TorchNeuron failed to load" in run.stdout, run.stderr
    assert "libtorch_neuronx.so" in run.stdout and "torch_neuronx.diagnose" in run.stdout


def test_an_older_extension_says_so(run_python):
    """As after an update of the sources that was not built."""
    done = run_python(
        """
import torch
from torch_neuronx import _C

del _C._exchange_device
assert not hasattr(_C, "_exchange_device")
torch.neuron.set_device(0)
"""
    )
    assert done.returncode != 0 and "Run `make build`" in done.stderr, done.stderr

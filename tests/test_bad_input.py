"""Mistakes: each gives an exception that names the cause and what is accepted, and leaves the process and its data usable."""

import pickle

import pytest
import torch

neuron = torch.neuron


@pytest.fixture(autouse=True)
def still_usable():
    """Data made before a mistake is intact after it, and the next call works."""
    x = torch.arange(6.0, device="neuron").reshape(2, 3)
    yield
    assert x.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (x + 1).sum().item() == 21
    neuron.synchronize()
    assert neuron.current_device() == 0 and neuron.current_stream() == neuron.default_stream()


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.empty(1, device="neuron:4"),
        lambda: torch.empty(1, device="neuron:99"),
        lambda: torch.ones(1).to("neuron:4"),
        lambda: neuron.set_device(4),
        lambda: neuron.device(4).__enter__(),
        lambda: neuron.get_device_properties(4),
        lambda: neuron.get_device_name("neuron:4"),
        lambda: neuron.synchronize(4),
        lambda: neuron.current_stream(4),
        lambda: neuron.Stream(4),
        lambda: neuron.get_rng_state(4),
        lambda: neuron.synchronize(-2),
        lambda: torch.Generator(device="neuron:4"),
        lambda: torch.accelerator.set_device_index(4),
        lambda: torch.accelerator.synchronize(4),
        lambda: torch.Stream("neuron:4"),
        lambda: neuron.memory_allocated(4),
        lambda: neuron.set_device(1000),
    ],
)
def test_no_such_device(use):
    with pytest.raises(RuntimeError, match=r"this process has 4 neuron device\(s\), so it must be in \[0, 4\)"):
        use()


@pytest.mark.parametrize(
    "device, exception, words",
    [
        ("cuda:0", ValueError, "Expected a neuron device"),
        (torch.device("cpu"), ValueError, "Expected a neuron device"),
        (1.5, TypeError, "float"),
        (True, TypeError, "bool"),
        ("nonsense", RuntimeError, "device type"),
    ],
)
def test_not_a_device_of_ours(device, exception, words):
    for use in (neuron.set_device, neuron.synchronize, neuron.current_stream, neuron.get_device_name):
        with pytest.raises(exception, match=words):
            use(device)


def test_set_device_without_an_index():
    with pytest.raises(ValueError, match="neuron:0"):
        neuron.set_device("neuron")


@pytest.mark.parametrize("stream_id", [1, 31, 96, -1, 1 << 40])
def test_a_stream_that_was_never_given_out(stream_id):
    kind = neuron.default_stream().device_type
    with pytest.raises(RuntimeError, match="Unknown stream id"):
        neuron.Stream(stream_id=stream_id, device_index=0, device_type=kind)
    foreign = torch.Stream(stream_id=stream_id, device_index=0, device_type=kind)
    for use in (neuron.set_stream, torch.accelerator.set_stream, lambda s: neuron.Event().record(s), lambda s: s.synchronize()):
        with pytest.raises(RuntimeError, match="Unknown stream id"):
            use(foreign)
    with pytest.raises(RuntimeError, match="Unknown stream id"), neuron.stream(foreign):
        pass
    with pytest.raises(RuntimeError, match="Unknown stream id"):
        torch.ones(1, device="neuron").record_stream(foreign)


def test_streams_of_others():
    with pytest.raises(RuntimeError, match="neuron device"):
        neuron.set_stream(torch.Stream("cpu"))
    with pytest.raises(RuntimeError, match=r"in \[0, 4\)"):
        neuron.Stream(stream_id=0, device_index=300, device_type=neuron.default_stream().device_type)
    with pytest.raises(TypeError, match="prio"):
        neuron.Stream(prio=1)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, cpu: x + cpu,
        lambda x, cpu: x @ cpu,
        lambda x, cpu: torch.cat([x, cpu]),
        lambda x, cpu: x.add_(cpu),
        lambda x, cpu: torch.nn.functional.linear(x, cpu),
        lambda x, cpu: torch.add(x, x, out=cpu),
        lambda x, cpu: x + x.to("neuron:1"),
        lambda x, cpu: torch.nn.Linear(3, 3)(x),
        lambda x, cpu: torch.where(x > 0, x, cpu),
    ],
)
def test_mixed_devices(use):
    x, cpu = torch.ones(3, 3, device="neuron"), torch.ones(3, 3)
    for _ in range(2):  # the second call finds what the first left in the cache
        with pytest.raises(RuntimeError, match=r"(?i)same device|cpu|neuron:1"):
            use(x, cpu)
    assert x.sum().item() == 9 and cpu.sum().item() == 9


def test_scalars_on_the_cpu_are_no_mixture():
    x = torch.ones(3, device="neuron")
    assert (x + torch.tensor(2.0)).cpu().tolist() == [3.0] * 3
    assert (torch.tensor(2.0) * x).device.type == "neuron"


@pytest.mark.parametrize(
    "use, exception, words",
    [
        (lambda x: x @ torch.ones(2, 5, device="neuron"), RuntimeError, "shape"),
        (lambda x: x.view(5), RuntimeError, "shape"),
        (lambda x: x[7], IndexError, "out of bounds"),
        (lambda x: x.sum(4), IndexError, "Dimension out of range"),
        (lambda x: torch.zeros(-1, device="neuron"), RuntimeError, "negative"),
        (lambda x: x.requires_grad_().numpy(), (TypeError, RuntimeError), "numpy"),
        (lambda x: torch.linalg.cholesky(-torch.eye(2, device="neuron")), RuntimeError, "positive-definite"),
        (lambda x: x.long().requires_grad_(), RuntimeError, "floating point"),
        (lambda x: torch.full((2,), 3.0, device="neuron").item(), RuntimeError, "2 elements"),
    ],
)
def test_pytorchs_own_errors(use, exception, words):
    x = torch.ones(2, 3, device="neuron")
    for _ in range(2):
        with pytest.raises(exception, match=words):
            use(x)
            neuron.synchronize()


def test_index_out_of_range_from_data():
    table, index = torch.ones(4, 2, device="neuron"), torch.tensor([0, 9], device="neuron")
    for _ in range(3):
        with pytest.raises((IndexError, RuntimeError), match="index"):
            torch.nn.functional.embedding(index, table)
            neuron.synchronize()
    assert table.sum().item() == 8


@pytest.mark.parametrize(
    "damage, exception, words",
    [
        ("cut", RuntimeError, "archive"),
        ("flip", pickle.UnpicklingError, "weights_only"),
        ("empty", EOFError, None),  # PyTorch gives it no words
        ("text", pickle.UnpicklingError, "weights_only"),
    ],
)
def test_corrupt_checkpoint(tmp_path, damage, exception, words):
    path = tmp_path / "c.pt"
    torch.save({"x": torch.randn(1000, device="neuron")}, path)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[:200] = bytes(200)
    else:
        data = bytearray(b"" if damage == "empty" else b"not a checkpoint")
    path.write_bytes(data)
    allocated = neuron.memory_allocated()
    with pytest.raises(exception, match=words):
        torch.load(path, map_location="neuron")
    assert neuron.memory_allocated() == allocated


def test_checkpoint_of_a_device_that_is_not_here(run_python, tmp_path):
    torch.save(torch.ones(2, device="neuron:3"), tmp_path / "c.pt")
    code = """
import sys, torch
try:
    torch.load(sys.argv[1])
except RuntimeError as error:
    print(error)
print(torch.load(sys.argv[1], map_location="neuron:0").sum().item())
"""
    run = run_python(code, str(tmp_path / "c.pt"), NEURON_RT_NUM_CORES="1")
    assert "map_location" in run.stdout and "device_count" in run.stdout and run.stdout.endswith("2.0\n"), run.stderr


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("TORCH_NEURONX_TARGET", "gpu", ["auto", "emulated", "trainium"]),
        ("TORCH_NEURONX_TARGET", "trainium", ["TORCH_NEURONX_TARGET", "emulated"]),
        ("TORCH_NEURONX_EMULATED_INSTANCE", "trn9.huge", ["trn2.3xlarge", "trn2.48xlarge"]),
        ("TORCH_NEURONX_FALLBACK", "maybe", ["error", "warn", "allow"]),
        ("TORCH_NEURONX_GUARD", "2", ["0", "1"]),
        ("TORCH_NEURONX_HOST_MEMORY_LIMIT", "lots", ["512M", "2G"]),
        ("NEURON_LOGICAL_NC_CONFIG", "3", ["1 to 2"]),
        ("NEURON_RT_NUM_CORES", "9", ["0 (all) to 4"]),
        ("NEURON_RT_VISIBLE_CORES", "0-9", ["core 4", "0 to 3"]),
        ("NEURON_RT_VISIBLE_CORES", "3-1", ["0-3"]),
        ("NEURON_RT_VISIBLE_CORES", "1,1", ["without repetition"]),
        ("NEURON_RT_VISIBLE_CORES", "one", ["0-3"]),
    ],
)
def test_bad_settings_are_explained_at_first_use_only(run_python, name, value, words):
    code = """
import torch
torch.manual_seed(0)
x = torch.ones(2, requires_grad=True); (x * x).sum().backward()
print(x.grad.sum().item(), torch.neuron.is_available(), torch.accelerator.is_available())
for use in (lambda: torch.empty(1, device="neuron"), torch.neuron.init, lambda: torch.neuron.set_device(0), torch.neuron.get_device_name,
            torch.neuron.synchronize, torch.neuron.Stream):
    try:
        use()
        print("nothing was raised")
    except RuntimeError as error:
        print(error)
"""
    run = run_python(code, **{name: value})
    assert run.returncode == 0 and run.stderr == "", run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "4.0 False False"
    messages = [line for line in lines[1:] if name in line]
    assert len(messages) == 6, run.stdout
    assert all(value in message or name == "NEURON_RT_VISIBLE_CORES" for message in messages), run.stdout
    assert all(all(word in message for word in words) for message in messages), run.stdout

"""torch.accelerator: the device-agnostic names."""

import pytest
import torch

accelerator = torch.accelerator


@pytest.fixture(autouse=True)
def keep_device():
    yield
    accelerator.set_device_index(0)


def test_what_is_current():
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("neuron")
    assert accelerator.current_accelerator(check_available=True) == torch.device("neuron")
    assert accelerator.device_count() == torch.neuron.device_count()


def test_device_index():
    accelerator.set_device_index(1)
    assert accelerator.current_device_index() == torch.neuron.current_device() == 1
    with accelerator.device_index(2):
        assert torch.empty(1, device=accelerator.current_accelerator()).device.index == 2
    assert accelerator.current_device_index() == 1
    with accelerator.device_index(None):
        assert accelerator.current_device_index() == 1


def test_capability_is_the_real_list():
    dtypes = accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.float64, torch.bool, torch.float8_e4m3fn} <= dtypes
    assert torch.qint8 not in dtypes


def test_streams():
    stream = torch.Stream("neuron")
    accelerator.set_stream(stream)
    try:
        assert accelerator.current_stream() == stream == torch.neuron.current_stream()
    finally:
        accelerator.set_stream(torch.neuron.default_stream())
    assert accelerator.current_stream("neuron:1") == torch.neuron.default_stream(1)
    with torch.Stream("neuron:1") as other:
        assert accelerator.current_device_index() == 1 and accelerator.current_stream() == other


def test_synchronize():
    x = torch.ones(1000, device="neuron")
    for _ in range(50):
        x = x + 1
    accelerator.synchronize()
    assert torch.neuron.current_stream().query()
    accelerator.synchronize(1)
    accelerator.synchronize("neuron:2")


def test_memory():
    accelerator.memory.empty_cache()
    before = accelerator.memory.memory_allocated()
    x = torch.empty(1 << 20, device="neuron")
    assert accelerator.memory.memory_allocated() - before >= x.nbytes
    assert accelerator.memory.memory_reserved() >= accelerator.memory.memory_allocated()
    assert accelerator.memory.max_memory_allocated() >= accelerator.memory.memory_allocated()
    assert accelerator.memory.memory_stats()["allocated_bytes.all.current"] == accelerator.memory.memory_allocated()
    free, total = accelerator.memory.get_memory_info()
    assert 0 < free <= total
    del x
    torch.neuron.synchronize()
    assert accelerator.memory.memory_allocated() == before
    accelerator.memory.reset_peak_memory_stats()
    accelerator.memory.reset_accumulated_memory_stats()


def test_a_device_agnostic_training_step():
    device = accelerator.current_accelerator()
    assert device is not None
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 4).to(device, non_blocking=True)
    losses = []
    for _ in range(5):
        with torch.autocast(device.type, enabled=False):
            loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)

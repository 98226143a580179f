"""DataLoader: workers, pinned memory, copies that do not block."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


class Items(torch.utils.data.Dataset):
    """Its items are made in the workers, with random numbers too."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "noise": torch.rand(1)}


def test_plain_loader_to_device():
    seen = []
    for x, y in DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_size=4):
        assert x.to("neuron").device.type == y.to("neuron").device.type == "neuron"
        seen += x.to("neuron").cpu().tolist()
    assert seen == list(range(10))


def test_pinned_tensors():
    x = torch.arange(8.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned.device.type == "cpu" and torch.equal(pinned, x)
    assert pinned[2:].is_pinned() and pinned.pin_memory() is pinned
    assert torch.empty(4, pin_memory=True).is_pinned()
    moved = pinned.to("neuron", non_blocking=True)
    back = torch.empty(8, pin_memory=True)
    back.copy_(moved, non_blocking=True)
    torch.neuron.synchronize()
    assert torch.equal(back, x)


@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory_after_the_device_was_used(workers):
    torch.ones(1, device="neuron").item()  # so the workers are forked from a process that has opened the device
    loader = DataLoader(Items(), batch_size=4, num_workers=workers, pin_memory=True)
    total = 0.0
    for batch in loader:
        assert batch["x"].is_pinned() and batch["noise"].is_pinned()
        total += batch["x"].to("neuron", non_blocking=True).sum().item()
    assert total == 3 * sum(range(16))


def test_pin_memory_device():
    loader = DataLoader(Items(), batch_size=8, pin_memory=True, pin_memory_device="neuron")
    assert all(batch["x"].is_pinned() for batch in loader)


def test_spawned_workers_may_use_the_device():
    loader = DataLoader(OnDevice(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert list(loader) == [0.0, 2.0]


class OnDevice(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index >= 2:
            raise IndexError
        return (torch.full((2,), float(index), device="neuron")).sum().item()


def test_forked_workers_that_use_the_device_say_what_to_do():
    torch.ones(1, device="neuron").item()
    with pytest.raises(RuntimeError, match="spawn"):
        list(DataLoader(OnDevice(), batch_size=None, num_workers=1, multiprocessing_context="fork"))

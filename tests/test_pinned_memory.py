"""Pinned host memory: made by pin_memory(), cached, safe to reuse while a copy is queued."""

import gc

import torch

MiB = 1 << 20


def test_pin_memory_gives_host_memory_that_knows_it_is_pinned():
    plain = torch.arange(1000)
    assert not plain.is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned() and pinned.device.type == "cpu"
    assert pinned[500:].is_pinned()
    assert torch.equal(pinned, plain)
    assert pinned.pin_memory() is pinned
    assert torch.empty(10, pin_memory=True).is_pinned()
    assert not torch.ones(10, device="neuron").is_pinned()


def test_pinned_memory_is_page_aligned_and_not_of_the_device():
    from torch_neuronx import _C

    pinned = torch.empty(5 * MiB, dtype=torch.uint8, pin_memory=True)
    assert pinned.data_ptr() % 4096 == 0
    assert _C._device_of_address(pinned.data_ptr()) == -1


def test_pinned_memory_is_cached_and_given_back():
    torch.neuron.empty_host_cache()
    address = torch.empty(MiB, dtype=torch.uint8, pin_memory=True).data_ptr()
    assert torch.empty(MiB, dtype=torch.uint8, pin_memory=True).data_ptr() == address
    stats = torch.neuron.host_memory_stats()
    assert stats["allocated_bytes.current"] >= MiB
    gc.collect()
    torch.accelerator.memory.empty_host_cache()
    assert torch.neuron.host_memory_stats()["allocated_bytes.current"] < stats["allocated_bytes.current"]


def test_statistics_reset():
    x = torch.empty(MiB, dtype=torch.uint8, pin_memory=True)
    torch.neuron.reset_accumulated_host_memory_stats()
    torch.neuron.reset_peak_host_memory_stats()
    stats = torch.neuron.host_memory_stats()
    assert stats["allocations.allocated"] == 0
    assert stats["active_bytes.peak"] == stats["active_bytes.current"] >= x.nbytes


def test_a_block_is_not_reused_before_its_copy_has_run():
    side = torch.neuron.Stream()
    results = []
    with torch.neuron.stream(side):
        for i in range(50):
            pinned = torch.full((100_000,), float(i)).pin_memory()
            results.append(pinned.to("neuron", non_blocking=True))
            del pinned
    side.synchronize()
    assert [r[-1].item() for r in results] == [float(i) for i in range(50)]


def test_copies_back_into_pinned_memory():
    x = torch.arange(10_000, device="neuron")
    pinned = torch.empty(10_000, dtype=torch.int64, pin_memory=True)
    pinned.copy_(x, non_blocking=True)
    torch.neuron.synchronize()
    assert torch.equal(pinned, torch.arange(10_000))


def test_data_loader_pins():
    data = torch.utils.data.TensorDataset(torch.arange(64).float())
    loader = torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.equal(torch.cat(batches), torch.arange(64).float())


def test_pinned_tensors_survive_pickle_and_numpy():
    import pickle

    pinned = torch.arange(10).pin_memory()
    assert torch.equal(pickle.loads(pickle.dumps(pinned)), torch.arange(10))
    array = pinned.numpy()
    array[0] = 7
    assert pinned[0].item() == 7

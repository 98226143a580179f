"""Saving, loading, pickling, copying."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch


def roundtrip(value, **kwargs):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float64])
def test_save_and_load_keep_device_and_values(dtype):
    x = torch.arange(6).reshape(2, 3).to(dtype)
    loaded = roundtrip(x.to("neuron:1"))
    assert loaded.device == torch.device("neuron:1") and loaded.dtype == dtype
    assert torch.equal(loaded.cpu(), x)


@pytest.mark.parametrize("target", ["cpu", torch.device("cpu"), {"neuron:1": "cpu"}, lambda storage, location: storage.cpu()])
def test_load_on_the_cpu(target):
    loaded = roundtrip(torch.ones(3, device="neuron:1"), map_location=target)
    assert loaded.device.type == "cpu" and loaded.tolist() == [1, 1, 1]


@pytest.mark.parametrize("target, device", [("neuron", "neuron:0"), ("neuron:2", "neuron:2"), ({"cpu": "neuron:1"}, "neuron:1")])
def test_load_a_cpu_file_on_the_device(target, device):
    loaded = roundtrip(torch.ones(3), map_location=target)
    assert str(loaded.device) == device and loaded.cpu().tolist() == [1, 1, 1]


def test_load_from_one_device_to_another():
    assert str(roundtrip(torch.ones(3, device="neuron:1"), map_location={"neuron:1": "neuron:3"}).device) == "neuron:3"


def test_views_share_their_storage_after_loading():
    base = torch.zeros(4, 4, device="neuron")
    base, column = roundtrip([base, base[:, 1]])
    column.fill_(5)
    assert base.sum().item() == 20 and column.stride() == (4,)


def test_module_and_optimizer_state(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4, device="neuron")).square().mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.neuron.get_rng_state()}, tmp_path / "c.pt")
    for device in ("neuron", "cpu"):
        other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(device)
        other_optimizer = torch.optim.AdamW(other.parameters())
        saved = torch.load(tmp_path / "c.pt", map_location=device)
        other.load_state_dict(saved["model"])
        other_optimizer.load_state_dict(saved["optimizer"])
        for ours, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
            assert theirs.device.type == device and torch.equal(ours.cpu(), theirs.cpu())
        moments = next(iter(other_optimizer.state.values()))["exp_avg"]
        assert moments.device.type == device and torch.equal(moments.cpu(), next(iter(optimizer.state.values()))["exp_avg"].cpu())


def test_mmap_and_legacy_formats(tmp_path):
    x = torch.randn(5, device="neuron")
    torch.save(x, tmp_path / "zip.pt")
    torch.save(x, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(torch.load(tmp_path / "zip.pt", mmap=True, map_location="cpu"), x.cpu())
    assert torch.equal(torch.load(tmp_path / "old.pt").cpu(), x.cpu())
    assert torch.load(tmp_path / "old.pt").device.type == "neuron"


def test_pickle():
    x = torch.randn(3, 2, device="neuron").t()
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device and y.stride() == x.stride() and torch.equal(x.cpu(), y.cpu())
    parameter = torch.nn.Parameter(torch.ones(2, device="neuron"))
    again = pickle.loads(pickle.dumps(parameter))
    assert isinstance(again, torch.nn.Parameter) and again.requires_grad and again.is_neuron


def test_deepcopy():
    x = torch.randn(4, device="neuron")
    y, view = copy.deepcopy([x, x[1:]])
    assert torch.equal(x.cpu(), y.cpu()) and y.data_ptr() != x.data_ptr()
    view.zero_()
    assert y[1:].abs().sum().item() == 0 and x.abs().sum().item() > 0
    model = torch.nn.Linear(2, 2).to("neuron")
    twin = copy.deepcopy(model)
    assert twin.weight.is_neuron and torch.equal(twin.weight.cpu(), model.weight.cpu())
    storage = copy.deepcopy(x.untyped_storage())
    assert storage.device.type == "neuron" and storage.nbytes() == 16


def test_generator_deepcopy_keeps_its_state():
    generator = torch.Generator(device="neuron").manual_seed(3)
    torch.rand(5, device="neuron", generator=generator)
    twin = pickle.loads(pickle.dumps(generator))
    assert twin.device == generator.device and torch.equal(twin.get_state(), generator.get_state())


def test_numpy():
    x = torch.arange(3.0, device="neuron")
    assert np.array_equal(x.cpu().numpy(), np.arange(3.0))
    with pytest.raises(TypeError, match="neuron"):
        x.numpy()
    assert torch.from_numpy(np.ones(2)).neuron().dtype == torch.float64

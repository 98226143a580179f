"""DLPack and numpy."""

import gc

import numpy as np
import pytest
import torch

import torch_neuronx
from torch_neuronx import from_dlpack, to_dlpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_capsule_shares_memory(dtype, max_version):
    base = torch.arange(6).reshape(2, 3).to(dtype)
    x = base.to("neuron:1")[:, 1:]
    y = from_dlpack(to_dlpack(x, max_version=max_version))
    assert (y.device, y.dtype, y.stride(), y.data_ptr()) == (x.device, dtype, x.stride(), x.data_ptr())
    assert torch.equal(y.cpu().view(torch.uint8), base[:, 1:].contiguous().view(torch.uint8))
    x.copy_(torch.zeros_like(x))
    assert not y.cpu().to(torch.complex64).any()


def test_a_capsule_keeps_the_memory_alive():
    x = torch.full((300,), 7.0, device="neuron")
    capsule = to_dlpack(x)
    del x
    gc.collect()
    torch.zeros(300, device="neuron")
    y = from_dlpack(capsule)
    torch.zeros(300, device="neuron")
    assert y.eq(7).all().item()


def test_an_unread_capsule_gives_the_memory_back():
    before = torch.neuron.memory_allocated()
    capsule = to_dlpack(torch.zeros(1 << 18, device="neuron"))
    assert torch.neuron.memory_allocated() > before
    del capsule
    gc.collect()
    assert torch.neuron.memory_allocated() == before


def test_a_tensor_shares_its_storage():
    x = torch.zeros(2, 3, device="neuron")
    y = from_dlpack(x.t())
    y[0, 1] = 5
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and x[1, 0].item() == 5
    y.record_stream(torch.neuron.Stream())


def test_copy_and_device():
    x = torch.arange(3.0, device="neuron:1")
    copied = from_dlpack(x, copy=True)
    copied.zero_()
    assert x.tolist() == [0, 1, 2]
    assert from_dlpack(x, copy=False, device="neuron:1").data_ptr() == x.data_ptr()
    assert from_dlpack(x, device="cpu").tolist() == [0, 1, 2]
    assert str(from_dlpack(x, device="neuron").device) == "neuron:0"
    with pytest.raises(ValueError, match="from neuron:1 to cpu without a copy: pass copy=None"):
        from_dlpack(x, device="cpu", copy=False)
    with pytest.raises(ValueError, match=r"with a capsule: convert first, then call \.to\(device\)"):
        from_dlpack(to_dlpack(x), device="cpu")


def test_from_numpy():
    array = np.arange(4, dtype=np.float32)
    shared = from_dlpack(array)
    array[0] = 9
    assert shared.device.type == "cpu" and shared[0].item() == 9
    with torch.neuron.device(1):
        moved = from_dlpack(array, device="neuron")
    assert str(moved.device) == "neuron:1" and moved.tolist() == [9, 1, 2, 3]


@pytest.mark.parametrize(
    "spoil, remedy",
    [
        (lambda x: x.requires_grad_(), r"pass tensor\.detach\(\)"),
        (lambda x: x.to(torch.complex64).conj(), r"pass tensor\.resolve_conj\(\)"),
        (lambda x: x.to(torch.complex64).conj().imag, r"pass tensor\.resolve_neg\(\)"),
        (lambda x: x.to_sparse(), r"strided tensors, not torch\.sparse_coo"),
    ],
)
@pytest.mark.parametrize("function", [to_dlpack, from_dlpack])
def test_what_a_capsule_cannot_say(function, spoil, remedy):
    with pytest.raises(BufferError, match=remedy):
        function(spoil(torch.ones(2, device="neuron")))


def test_what_is_no_tensor():
    with pytest.raises(TypeError, match=r"to_dlpack takes a torch\.Tensor, not list"):
        to_dlpack([1])


def test_the_functions_are_public():
    assert torch.neuron.from_dlpack is torch_neuronx.from_dlpack and torch.neuron.to_dlpack is torch_neuronx.to_dlpack


def test_upstream_still_needs_the_helper():
    """When this fails, PyTorch knows renamed backends, and from_dlpack() may go."""
    with pytest.raises(ValueError, match="Unknown device type neuron for Dlpack"):
        torch.from_dlpack(torch.ones(2, device="neuron"))


def test_array_interface():
    x = torch.arange(12.0, device="neuron:1").view(3, 4)
    side = torch.neuron.Stream("neuron:1")
    with torch.neuron.stream(side):
        described = torch.neuron.array_interface(x[1:, ::2])
    assert described == {
        "shape": (2, 2),
        "typestr": "<f4",
        "data": (x.data_ptr() + 16, False),
        "strides": (16, 8),
        "version": 3,
        "stream": side.stream_id,
    }
    assert torch.neuron.array_interface(x)["strides"] is None
    assert torch.neuron.array_interface(x[:0])["data"] == (0, False)
    for dtype, typestr in ((torch.bool, "|b1"), (torch.int64, "<i8"), (torch.complex64, "<c8"), (torch.uint16, "<u2")):
        assert torch.neuron.array_interface(x.to(dtype))["typestr"] == typestr
    with pytest.raises(TypeError, match=r"no name for torch\.bfloat16: pass tensor\.view\(torch\.int16\)"):
        torch.neuron.array_interface(x.bfloat16())
    with pytest.raises(TypeError, match="on neuron, not on cpu"):
        torch.neuron.array_interface(x.cpu())
    with pytest.raises(BufferError, match=r"pass tensor\.detach\(\)"):
        torch.neuron.array_interface(x.requires_grad_())


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, np.asarray, np.sin])
def test_numpy_is_refused_with_the_remedy(convert):
    with pytest.raises(TypeError, match=r"can't convert neuron:0 device type tensor to numpy\. Use Tensor\.cpu\(\)"):
        convert(torch.ones(2, device="neuron"))


def test_to_numpy():
    x = torch.arange(3.0, device="neuron").mul_(2)
    for array in (np.asarray(x.cpu()), x.cpu().numpy(), x.numpy(force=True)):
        array[0] = 100  # a copy
        assert array[1:].tolist() == [2, 4]
    assert x.tolist() == [0, 2, 4]


def test_numpy_values_in_calls():
    x = torch.arange(4.0, device="neuron")
    assert (x * np.float32(2)).tolist() == [0, 2, 4, 6]
    assert x[np.array([3, 1])].tolist() == [3, 1]
    assert torch.as_tensor(np.arange(2), device="neuron").device.type == "neuron"
    x[1:3] = torch.from_numpy(np.array([7.0, 8.0], dtype=np.float32))
    assert x.tolist() == [0, 7, 8, 3]

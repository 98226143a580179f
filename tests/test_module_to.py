"""Moving modules between devices keeps what they are: the same Parameter objects, tied where they were tied."""

import copy

import pytest
import torch
from torch import nn


def tied() -> nn.Module:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    return model


@pytest.mark.parametrize("way", [("cpu", "neuron"), ("neuron", "cpu"), ("neuron:0", "neuron:1")])
def test_parameters_stay_the_same_objects(way):
    model = tied().to(way[0])
    parameter, values = model["head"].weight, model["head"].weight.detach().cpu()
    model.to(way[1])
    assert model["head"].weight is parameter
    assert model["embedding"].weight is parameter
    assert parameter.device == torch.device(way[1] if ":" in way[1] else torch.empty(0, device=way[1]).device)
    assert torch.equal(parameter.detach().cpu(), values)


def test_gradient_of_tied_weights_is_their_sum():
    def gradient(device):
        torch.manual_seed(0)
        model = tied().to(device)
        model["head"](model["embedding"](torch.tensor([1, 2], device=device))).sum().backward()
        return model["embedding"].weight.grad.cpu()

    torch.testing.assert_close(gradient("neuron"), gradient("cpu"))


def test_optimizer_made_before_the_move_updates_the_moved_parameters():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("neuron")
    before = model.weight.detach().clone()
    model(torch.ones(1, 2, device="neuron")).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight, before - 1)


def test_gradients_and_buffers_move_along():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model(torch.randn(4, 2)).sum().backward()
    gradient = model[0].weight.grad.clone()
    model.to("neuron")
    assert model[0].weight.grad.device.type == "neuron"
    assert torch.equal(model[0].weight.grad.cpu(), gradient)
    assert model[1].running_mean.device.type == "neuron"
    model(torch.randn(4, 2, device="neuron")).sum().backward()  # accumulates, after the gradient was on another device
    assert model[0].weight.grad.device.type == "neuron"


def test_assigning_data_moves_a_tensor_and_keeps_its_version():
    x = torch.zeros(3)
    x.add_(1)
    version = x._version
    x.data = torch.full((2,), 7.0, device="neuron")
    assert x.device.type == "neuron"
    assert x._version == version
    assert x.cpu().tolist() == [7.0, 7.0]


def test_assigning_data_of_another_kind_is_refused():
    x = torch.zeros(3, device="neuron")
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = torch.zeros(3).to_sparse()


def test_deepcopy_keeps_ties_and_makes_new_memory():
    model = tied().to("neuron")
    twin = copy.deepcopy(model)
    assert twin["head"].weight is twin["embedding"].weight
    with torch.no_grad():
        twin["head"].weight.zero_()
    assert model["head"].weight.abs().sum().item() > 0

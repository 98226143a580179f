"""torch.neuron.explain() on compiled code: graphs, cuts, Programs, recompiles; each with its reason."""

import torch

neuron = torch.neuron


def test_programs_replays_and_misses():
    x = torch.randn(3, 4, device="neuron")
    compiled = torch.compile(lambda x: (x * 2).relu() + 1, backend="neuron", dynamic=True, options={"model_name": "net"})
    with neuron.explain() as report:
        for _ in range(3):
            compiled(x)
        compiled(x[:2])
    (graph,) = report.as_dict()["compile"]["graphs"]
    assert graph["name"].startswith("net inference") and graph["new"]
    assert (graph["parts"], graph["programs"], graph["runs"], graph["replays"]) == (1, 1, 4, 2)
    first, second = graph["misses"]
    assert first == "first call" and "sizes [3, 4] strides [4, 1] -> Float sizes [2, 4]" in second, second
    assert report.recompiles == 0 and graph["node_by_node"] == {} and graph["cuts"] == {}
    assert "1 of 1 parts are Programs, 2 replays" in str(report)
    with neuron.explain() as report:
        compiled(x)
    (graph,) = report.as_dict()["compile"]["graphs"]
    assert (graph["runs"], graph["replays"], graph["misses"], graph["new"]) == (1, 1, [], False)


def test_cuts_name_the_operator():
    x = torch.tensor([0.0, 1.0, 2.0], device="neuron")

    @torch.compile(backend="neuron")
    def f(x):
        y = (x * 2).cpu()
        return y.to("neuron") + x

    with neuron.explain() as report:
        assert f(x).tolist() == [0, 3, 6]
    (graph,) = report.as_dict()["compile"]["graphs"]
    assert graph["programs"] == 2 and graph["cuts"] == {"aten::_to_copy gives a tensor on cpu": 1}
    assert "aten::_to_copy gives a tensor on cpu" in str(report)


def test_recompiles_name_their_cause():
    compiled = torch.compile(lambda x: x + 1, backend="neuron", dynamic=False)
    compiled(torch.ones(3, device="neuron"))
    with neuron.explain() as report:
        compiled(torch.ones(5, device="neuron"))
    (item,) = report.as_dict()["compile"]["recompiles"]
    assert report.recompiles == 1 and "size mismatch at index 0. expected 3, actual 5" in item["reason"], item
    assert "test_explain.py" in item["function"] and "expected 3, actual 5" in str(report)

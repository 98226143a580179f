"""Hugging Face transformers compiled as one graph: tiny random models give eager's losses, results and gradients, bit for bit."""

import copy

import pytest
import torch
import transformers

from tests.test_transformers import DEVICE, FAMILIES, causal, padded_text, pair, tensors, to

QUICK = ("GPT-2", "Mixtral")
FULL = ("Llama", "Qwen3", "BERT", "T5", "Whisper", "ViT")


def outcome(call, model, inputs):
    model.zero_grad()
    output = call(**inputs)
    output.loss.backward()
    return {**tensors(output), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)])
def test_one_graph(name):
    _, model = pair(name)
    if name == "GPT-2":
        model.loss_type = "ForCausalLM"  # its class name tells none, and transformers' warning of that breaks the graph
    inputs = to(DEVICE, FAMILIES[name].train())
    twin = copy.deepcopy(model)
    twin(**inputs)  # transformers installs hooks at the first call, under a lock that Dynamo cannot trace
    expected = outcome(model, model, inputs)
    compiled = torch.compile(twin, backend="neuron", fullgraph=True)
    for _ in ("recorded", "replayed"):
        actual = outcome(compiled, twin, inputs)
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.equal(actual[key], value), key


@pytest.mark.full
@pytest.mark.timeout(600)
def test_generate_with_a_static_cache():
    """transformers compiles this with backend "inductor" unless it is told otherwise."""
    model, twin = pair("Llama")
    inputs = padded_text()
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static"}
    expected = model.eval().generate(**inputs, **options, disable_compile=True)
    config = transformers.CompileConfig(backend="neuron")
    with torch.neuron.explain() as report:
        actual = twin.eval().generate(**to(DEVICE, inputs), **options, compile_config=config)
    assert actual.tolist() == expected.tolist()
    assert sum(graph["replays"] for graph in report.as_dict()["compile"]["graphs"]) >= 4, report


@pytest.mark.full
def test_lengths_under_dynamic():
    _, model = pair("Llama")
    compiled = torch.compile(model, backend="neuron", dynamic=True, fullgraph=True)
    with torch.no_grad(), torch.neuron.explain() as report:
        for length in (10, 7, 13, 10):
            inputs = to(DEVICE, causal(**padded_text(length=length)))
            assert torch.equal(compiled(**inputs).logits, model(**inputs).logits)
    assert report.recompiles <= 1, report

"""Hugging Face transformers on `neuron`: tiny random models of ten families give what they give on the CPU.

Everything is built from configurations: nothing is downloaded.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import transformers
from torch import nn

DEVICE = "neuron"
VOCABULARY = 97

# Ends no sentence early, and spreads the logits so that rounding does not decide which token wins.
COMMON = {"vocab_size": VOCABULARY, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
DECODER = {
    **COMMON,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 4}


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape)


def padded_text(batch: int = 2, length: int = 10) -> dict[str, torch.Tensor]:
    """The first row is two tokens shorter, padded on the left as generate() wants it."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, :2] = 0
    return {"input_ids": tokens(batch, length) * mask, "attention_mask": mask}


def causal(**inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**inputs, "labels": inputs["input_ids"]}


class Family:
    """A tiny model, its inputs for training, and those for generate() (None: it does not generate)."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        train: Callable[[], dict[str, Any]],
        generate: Callable[[], dict[str, Any]] | None = None,
        caches: tuple[str, ...] = ("dynamic", "static"),
    ) -> None:
        self.build, self.train, self.generate, self.caches = build, train, generate, caches


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(**COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(**DECODER, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return transformers.BertForMaskedLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0, initializer_factor=1.0,
        pad_token_id=0, eos_token_id=None, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=20, max_target_positions=40, dropout=0,
        attention_dropout=0, activation_dropout=0, init_std=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(**VISION, num_labels=5, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return transformers.ViTForImageClassification(config)


def clip() -> nn.Module:
    text = {**DECODER, "projection_dim": 16, "eos_token_id": VOCABULARY - 1}
    config = transformers.CLIPConfig(text_config=text, vision_config={**VISION, "projection_dim": 16}, projection_dim=16)
    return transformers.CLIPModel(config)


def mamba() -> nn.Module:
    config = transformers.MambaConfig(**COMMON, hidden_size=32, state_size=4, num_hidden_layers=2, conv_kernel=3, time_step_rank=4)
    return transformers.MambaForCausalLM(config)


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    return transformers.MixtralForCausalLM(config)


def images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16)


def sound() -> torch.Tensor:
    return torch.randn(2, 8, 40)


def text_to_text() -> dict[str, Any]:
    return {**padded_text(), "labels": tokens(2, 7)}


FAMILIES = {
    "GPT-2": Family(gpt2, lambda: causal(**padded_text()), padded_text),
    "Llama": Family(
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)), lambda: causal(**padded_text()), padded_text
    ),
    "Qwen3": Family(
        lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, head_dim=8)),
        lambda: causal(**padded_text()),
        padded_text,
    ),
    "BERT": Family(bert, lambda: causal(**padded_text())),
    "T5": Family(t5, text_to_text, padded_text),
    "Whisper": Family(
        whisper, lambda: {"input_features": sound(), "labels": tokens(2, 7)}, lambda: {"input_features": sound(), "language": None}
    ),
    "ViT": Family(vit, lambda: {"pixel_values": images(), "labels": torch.tensor([1, 4])}),
    "CLIP": Family(clip, lambda: {"pixel_values": images(), **padded_text(), "return_loss": True}),
    "Mamba": Family(
        mamba, lambda: {"input_ids": (ids := tokens(2, 10)), "labels": ids}, lambda: {"input_ids": tokens(2, 10)}, caches=("dynamic",)
    ),
    "Mixtral": Family(mixtral, lambda: {**causal(**padded_text()), "output_router_logits": True}, padded_text),
}


def pair(name: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = FAMILIES[name].build()
    return model, copy.deepcopy(model).to(DEVICE)


def to(device: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def at(place: str) -> Callable[[str], str]:
    """For assert_close's msg: names what differs."""
    return lambda text: f"{place}: {text}"


def tensors(output: Any) -> dict[str, torch.Tensor]:
    """The tensors of a ModelOutput, those of nested outputs and of tuples too; caches are left out."""
    found: dict[str, torch.Tensor] = {}
    items = output.items() if hasattr(output, "items") else enumerate(output)
    for name, value in items:
        if isinstance(value, torch.Tensor):
            found[str(name)] = value
        elif isinstance(value, tuple | transformers.utils.ModelOutput):
            found |= {f"{name}.{inner}": tensor for inner, tensor in tensors(value).items()}
    return found


ATTENTIONS = [(name, kind) for name in FAMILIES for kind in (("sdpa", "eager") if name != "Mamba" else ("none",))]


@pytest.mark.parametrize(("name", "attention"), ATTENTIONS)
def test_forward(name: str, attention: str) -> None:
    model, twin = pair(name)
    for each in (model, twin):
        each.eval()
        if attention != "none":
            each.set_attn_implementation(attention)
    inputs = FAMILIES[name].train()
    with torch.no_grad():
        expected, actual = tensors(model(**inputs)), tensors(twin(**to(DEVICE, inputs)))
    assert actual.keys() == expected.keys() and expected
    for key, value in expected.items():
        assert actual[key].device.type == DEVICE
        torch.testing.assert_close(actual[key].cpu(), value, rtol=1e-4, atol=1e-4, msg=at(key))


@pytest.mark.parametrize("name", FAMILIES)
def test_backward_and_adamw(name: str) -> None:
    model, twin = pair(name)
    inputs = FAMILIES[name].train()
    # Some gradients are zero but for rounding (the bias of keys); a larger eps keeps Adam from blowing that up.
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3, eps=1e-4) for each in (model, twin)]
    for step in range(3):
        losses = []
        for each, optimizer, device in ((model, optimizers[0], "cpu"), (twin, optimizers[1], DEVICE)):
            each.train()
            optimizer.zero_grad()
            loss = each(**to(device, inputs)).loss
            loss.backward()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5, msg=at(f"loss of step {step}"))
        for (label, p), (_, q) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), label
            if p.grad is not None and q.grad is not None:
                scale = p.grad.abs().max().item()
                torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-3 * scale + 1e-6, msg=at(label))
        for optimizer in optimizers:
            optimizer.step()
    for (label, p), (_, q) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=1e-3, atol=1e-4, msg=at(label))


# Mamba keeps a state of fixed size, not a cache of keys.
CACHES = [(name, cache) for name, family in FAMILIES.items() if family.generate for cache in family.caches]


@pytest.mark.parametrize(("name", "cache"), CACHES)
def test_generate(name: str, cache: str) -> None:
    family = FAMILIES[name]
    assert family.generate
    model, twin = pair(name)
    inputs = family.generate()
    # With a static cache transformers would compile on this device; here the eager path is tested.
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "disable_compile": True}
    if "attention_mask" in inputs or name == "Whisper":
        options["cache_implementation"] = cache
    expected = model.eval().generate(**inputs, **options)
    actual = twin.eval().generate(**to(DEVICE, inputs), **options)
    assert actual.device.type == DEVICE
    assert actual.tolist() == expected.tolist()
    assert expected.shape[-1] > 3


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"do_sample": True, "top_k": 20, "top_p": 0.9}], ids=["beams", "sampling"])
def test_generate_otherwise(options: dict[str, Any]) -> None:
    model, twin = pair("GPT-2")
    inputs = padded_text()
    actual = twin.eval().generate(**to(DEVICE, inputs), max_new_tokens=6, **options)
    assert actual.shape == (2, 16) and actual.max() < VOCABULARY
    if not options.get("do_sample"):
        assert actual.tolist() == model.eval().generate(**inputs, max_new_tokens=6, **options).tolist()
        return
    torch.manual_seed(5)
    first = twin.generate(**to(DEVICE, inputs), max_new_tokens=6, **options)
    torch.manual_seed(5)
    assert torch.equal(twin.generate(**to(DEVICE, inputs), max_new_tokens=6, **options), first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, twin = pair("Llama")
    model, twin = model.to(dtype), twin.to(dtype)
    inputs = causal(**padded_text())
    expected, actual = model(**inputs), twin(**to(DEVICE, inputs))
    torch.testing.assert_close(actual.logits.cpu(), expected.logits, rtol=0.1, atol=0.1)
    torch.testing.assert_close(actual.loss.cpu(), expected.loss, rtol=0.02, atol=0.02)


def test_save_and_load(tmp_path: Any) -> None:
    """A checkpoint written from the device loads straight onto it."""
    model, twin = pair("GPT-2")
    twin.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map={"": DEVICE}) if _has_accelerate() else None
    if loaded is None:
        loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).to(DEVICE)
    for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
        assert q.device.type == DEVICE and torch.equal(q.detach().cpu(), p.detach())


def _has_accelerate() -> bool:
    return transformers.utils.is_accelerate_available()

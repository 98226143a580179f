"""torch.compile with sizes that change: training on batches of any length, and decoding with a KV cache that grows by one each step.

    python examples/compile_dynamic.py

All sizes share a graph or two. A new size runs as fast as eager the first time, and as one launch without Python afterwards;
`torch.neuron.explain()` shows it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS = 97, 64, 4


class Decoder(nn.Module):
    """One attention layer. Token numbers [batch, n], a KV cache of two [batch, heads, length, width / heads] or None; logits, new cache."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, numbers: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = self.tokens(numbers)
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + y.transpose(1, 2).reshape(batch, length, WIDTH)
        return self.head(x + self.mlp(x)), (k, v)


def train(model: nn.Module, compiled: Callable, lengths: list[int], device: str) -> list[float]:
    """One step of Adam for each length; gives the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for length in lengths:
        numbers = torch.arange(4 * (length + 1)).view(4, -1).mul(7).remainder(VOCABULARY).to(device)
        logits, _ = compiled(numbers[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), numbers[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def decode(model: nn.Module, compiled: Callable, prompt: Tensor, count: int) -> list[int]:
    """The tokens that follow `prompt` [1, n], always the likeliest."""
    logits, cache = model(prompt)
    following = []
    for _ in range(count):
        token = logits[:, -1:].argmax(-1)
        following.append(int(token))
        logits, cache = compiled(token, cache)
    return following


def main() -> None:
    parser = argparse.ArgumentParser(description="torch.compile with sizes that change")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=16, help="training steps, and tokens to decode (16)")
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON object")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Decoder().to(args.device)
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    lengths = [5 + 3 * step % 29 for step in range(args.steps)]
    prompt = torch.arange(6, device=args.device)[None]
    with torch.neuron.explain() as training:
        losses = train(model, compiled, lengths, args.device)
    with torch.neuron.explain() as decoding:
        tokens = decode(model, compiled, prompt, args.steps)
    with torch.neuron.explain() as again:
        assert decode(model, compiled, prompt, args.steps) == tokens
    if args.json:
        graphs = [sum(graph["new"] for graph in report.as_dict()["compile"]["graphs"]) for report in (training, decoding, again)]
        replays = sum(graph["replays"] for graph in again.as_dict()["compile"]["graphs"])
        print(json.dumps({"losses": losses, "tokens": tokens, "new_graphs": graphs, "replays": replays}))
        return
    print(f"{len(set(lengths))} lengths, loss {losses[0]:.3f} -> {losses[-1]:.3f}; decoded {tokens}")
    print("training", training, "decoding the same again", again, sep="\n")


if __name__ == "__main__":
    main()

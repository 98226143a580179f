"""Train a small character-level GPT on the source text of Python's own standard library.

    python examples/train_gpt.py                     # the accelerator, `neuron` here; about a minute on 2 cores
    python examples/train_gpt.py --device cpu        # the same on the CPU
    python examples/train_gpt.py --data shakespeare.txt --steps 2000

Nothing in this file knows of Trainium: it is the script that one would write for CUDA. Weights and batches are drawn on the CPU from
``--seed``, so that with ``--dropout 0`` two devices see the same numbers.
"""

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

# ---- Text ----------------------------------------------------------------------------------------------------------------

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # every other character becomes a space
TEXT_LIMIT = 8 << 20


def read_text(file: Path | None) -> str:
    """The text of `file`, or that of the standard library's modules, in the order of their names."""
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace")
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    return "\n".join(module.read_text(encoding="utf-8", errors="replace") for module in modules)[:TEXT_LIMIT]


def encode(text: str) -> Tensor:
    """Character numbers, int64 [len(text)]."""
    number = {character: i for i, character in enumerate(ALPHABET)}
    space = number[" "]
    return torch.tensor([number.get(character, space) for character in text])


def decode(numbers: Tensor) -> str:
    return "".join(ALPHABET[i] for i in numbers.tolist())


def draw_batch(data: Tensor, batch: int, context: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows of `data` and the same windows moved on by one character: two int64 tensors [batch, context]."""
    starts = torch.randint(len(data) - context, (batch,), generator=random)
    windows = torch.stack([data[start : start + context + 1] for start in starts.tolist()])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


# ---- Model ---------------------------------------------------------------------------------------------------------------


@dataclass
class Config:
    layers: int
    heads: int
    width: int
    context: int
    dropout: float


class Block(nn.Module):
    """One transformer layer: attention, then a two-layer perceptron, each behind a layer norm and beside a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Character numbers [batch, length] in, logits [batch, length, len(ALPHABET)] out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.characters = nn.Embedding(len(ALPHABET), config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, len(ALPHABET), bias=False)
        self.head.weight = self.characters.weight
        nn.init.normal_(self.characters.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, numbers: Tensor) -> Tensor:
        places = torch.arange(numbers.shape[1], device=numbers.device)
        x = self.characters(numbers) + self.positions(places)
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def generate(self, prompt: Tensor, count: int, temperature: float = 0.8) -> Tensor:
        """`prompt` [length], with `count` more characters drawn one by one."""
        numbers = prompt[None]
        for _ in range(count):
            logits = self(numbers[:, -self.config.context :])[:, -1]
            following = torch.multinomial(torch.softmax(logits / temperature, -1), 1)
            numbers = torch.cat([numbers, following], 1)
        return numbers[0]


def loss_of(model: nn.Module, numbers: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(numbers).flatten(0, 1), targets.flatten())


# ---- Training ------------------------------------------------------------------------------------------------------------


def learning_rate(step: int, steps: int) -> float:
    """Factor of the peak learning rate: a linear rise over the first twentieth, then a cosine down to a tenth."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    return 0.55 + 0.45 * math.cos(math.pi * (step - rise) / max(1, steps - rise))


def train(model: GPT, data: Tensor, args: argparse.Namespace, device: torch.device, console: Console) -> tuple[list[float], float]:
    """Trains for `args.steps` steps. Returns the loss of each, and the tokens per second."""
    random = torch.Generator().manual_seed(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args.steps))
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    losses: list[Tensor] = []
    model.train()
    start = time.perf_counter()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=args.steps, state="")
        for step in range(1, args.steps + 1):
            numbers, targets = draw_batch(data, args.batch, args.context, random)
            loss = loss_of(model, numbers.to(device, non_blocking=True), targets.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            # Only now and then does the host wait for the device: that is what reading the loss does.
            if step % 10 == 0 or step == args.steps:
                value, speed = loss.item(), step * args.batch * args.context / (time.perf_counter() - start)
                progress.update(bar, completed=step, state=f"loss {value:.3f}  {speed:,.0f} tokens/s")
                if not console.is_terminal and (step % 100 == 0 or step == args.steps):
                    console.print(f"step {step:5d}  loss {value:.3f}  {speed:,.0f} tokens/s")
    values = torch.stack(losses).tolist()
    return values, args.steps * args.batch * args.context / (time.perf_counter() - start)


@torch.no_grad()
def evaluate(model: GPT, data: Tensor, args: argparse.Namespace, device: torch.device, batches: int = 4) -> float:
    """Mean loss on text that was not trained on; the same batches at each call."""
    model.eval()
    random = torch.Generator().manual_seed(args.seed + 1)
    losses = []
    for _ in range(batches):
        numbers, targets = draw_batch(data, args.batch, args.context, random)
        losses.append(loss_of(model, numbers.to(device), targets.to(device)))
    return torch.stack(losses).mean().item()


def save_checkpoint(model: GPT, file: Path) -> None:
    torch.save({"config": asdict(model.config), "model": model.state_dict()}, file)


def load_checkpoint(file: Path, device: torch.device) -> GPT:
    state = torch.load(file, map_location=device)
    model = GPT(Config(**state["config"])).to(device)
    model.load_state_dict(state["model"])
    return model.eval()


def plot(losses: list[float], held_out: float, title: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(range(1, len(losses) + 1), losses, label="training")
    axes.axhline(held_out, color="tab:orange", linestyle="--", label=f"held-out text at the end: {held_out:.3f}")
    axes.set(xlabel="step", ylabel="cross entropy, nats per character", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


# ---- The script ----------------------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a character-level GPT on Python's standard library.")
    parser.add_argument("--device", help="a PyTorch device; the machine's accelerator unless given, else the CPU")
    parser.add_argument("--data", type=Path, metavar="FILE", help="a text file to train on instead")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where checkpoint and loss curve go (out)")
    parser.add_argument("--steps", type=int, default=900, help="training steps (900)")
    parser.add_argument("--batch", type=int, default=12, help="windows per step (12)")
    parser.add_argument("--context", type=int, default=64, help="characters per window (64)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="size of the residual stream, a multiple of --heads (128)")
    parser.add_argument("--dropout", type=float, default=0.0, help="0 fits a run that sees its text once (0)")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (0.003)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="characters to generate at the end (300)")
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON object with the results")
    args = parser.parse_args()
    for name in ("steps", "batch", "context", "layers", "heads", "width"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(args, name)}")
    if args.width % args.heads:
        parser.error(f"--width must be a multiple of --heads; {args.width} is not one of {args.heads}")
    return args


def main() -> None:
    args = parse_arguments()
    console = Console(file=sys.stderr if args.json else sys.stdout, quiet=args.json, highlight=False)
    if args.device:
        device = torch.device(args.device)
    else:
        device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")

    text = read_text(args.data)
    data = encode(text)
    held_out = len(data) // 10
    if held_out <= args.context:
        sys.exit(f"the text has {len(data):,} characters; --context {args.context} needs more than {10 * args.context:,}")
    training_data, test_data = data[:-held_out], data[-held_out:]

    torch.manual_seed(args.seed)
    model = GPT(Config(args.layers, args.heads, args.width, args.context, args.dropout)).to(device)
    size = sum(parameter.numel() for parameter in model.parameters())
    source = args.data or "Python's standard library"
    console.print(f"{size:,} parameters on {device}; {len(data):,} characters of {source}")

    losses, speed = train(model, training_data, args, device, console)
    final = evaluate(model, test_data, args, device)

    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, curve = args.out / "gpt.pt", args.out / "loss.png"
    save_checkpoint(model, checkpoint)
    reloaded = load_checkpoint(checkpoint, device)
    again = evaluate(reloaded, test_data, args, device)
    if not math.isclose(final, again, rel_tol=1e-5):
        sys.exit(f"{checkpoint} does not hold the model that was saved: its loss is {again}, it was {final}")
    plot(losses, final, f"{size:,} parameters on {device}", curve)
    sample = decode(reloaded.generate(encode("def ").to(device), args.sample))

    console.print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, on held-out text {final:.3f}; {speed:,.0f} tokens/s")
    console.print(f"checkpoint {checkpoint} (saved, reloaded, same loss); loss curve {curve}", soft_wrap=True)
    console.rule("a sample")
    console.print(sample, markup=False, soft_wrap=True)
    if args.json:
        result = {"device": str(device), "losses": losses, "held_out_loss": final, "tokens_per_s": speed, "sample": sample}
        print(json.dumps({**result, "checkpoint": str(checkpoint), "curve": str(curve)}))


if __name__ == "__main__":
    main()

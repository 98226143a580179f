"""Elastic training: a rank dies, torchrun starts all again, and training goes on from the last checkpoint with no step lost or repeated.

torchrun --nproc-per-node 4 --max-restarts 1 examples/distributed/elastic.py --check
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path

import common
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint: the metadata is written last."""
    complete = [path for path in folder.glob("step*") if (path / ".metadata").exists()]
    return max(complete, key=lambda path: int(path.name[4:]), default=None)


def train(steps: int, folder: Path, dies_at: int | None) -> tuple[list[float], common.Weights]:
    """Trains with a checkpoint after each step. With ``dies_at``, the last rank kills itself in that step of the first attempt."""
    model = common.make_model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=common.LEARNING_RATE, momentum=0.9)
    losses: list[float] = []
    if checkpoint := latest(folder):
        weights, state = get_state_dict(model, optimizer)
        progress = {"losses": torch.zeros(int(checkpoint.name[4:]), dtype=torch.float64)}
        dcp.load({"model": weights, "optimizer": state, "progress": progress}, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        losses = progress["losses"].tolist()
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(len(losses), steps):
        tokens, targets = (x.chunk(size)[rank] for x in common.batch(step))
        loss = common.loss_of(model(tokens), targets)
        loss.backward()
        if step == dies_at and rank == size - 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(common.mean_over_ranks(loss))
        weights, state = get_state_dict(model, optimizer)
        progress = {"losses": torch.tensor(losses, dtype=torch.float64)}
        dcp.save({"model": weights, "optimizer": state, "progress": progress}, checkpoint_id=folder / f"step{step + 1}")
    return losses, {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in model.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="for checkpoints; a temporary one by default")
    parser.add_argument("--check", action="store_true", help="let a rank die in the middle, and compare with a run that nothing disturbed")
    options = parser.parse_args()
    dist.init_process_group("neuron")
    # The same folder in all ranks and all attempts.
    folder = options.folder or Path(tempfile.gettempdir()) / f"elastic-{os.environ['TORCHELASTIC_RUN_ID']}-{os.getppid()}"
    losses, weights = train(options.steps, folder, options.steps // 2 if options.check else None)
    if options.check:
        undisturbed = train(options.steps, folder / "undisturbed", None)
        if losses != undisturbed[0] or any(not torch.equal(weights[name], undisturbed[1][name]) for name in weights):
            raise SystemExit("elastic: the restarted run differs from one that nothing disturbed")
        if dist.get_rank() == 0:
            print(f"elastic: attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} ended as a run that nothing disturbed, to the last bit")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

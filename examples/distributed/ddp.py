"""Data parallel: each rank has the whole model and its share of the batch; gradients are averaged in buckets while backward runs.

torchrun --nproc-per-node 4 examples/distributed/ddp.py --check
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(steps: int, compiled: bool = False) -> tuple[list[float], common.Weights]:
    model = DistributedDataParallel(common.make_model())
    run = torch.compile(model, backend="neuron") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=common.LEARNING_RATE)
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in range(steps):
        tokens, targets = (x.chunk(size)[rank] for x in common.batch(step))
        loss = common.loss_of(run(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(common.mean_over_ranks(loss))
    return losses, model.module.state_dict()


def check(steps: int, compiled: bool = False) -> None:
    common.compare("ddp", *train(steps, compiled), common.train_alone(steps))


if __name__ == "__main__":
    common.main(train, check, may_compile=True)

"""Fully sharded data parallel: each rank keeps a part of every weight; a block's weights are gathered just before it runs.

torchrun --nproc-per-node 4 examples/distributed/fsdp2.py --check
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def train(steps: int, compiled: bool = False) -> tuple[list[float], common.Weights]:
    model = common.make_model()
    for block in model.blocks:
        if compiled:
            block.compile(backend="neuron")  # each by itself: gathering weights stays outside of the graphs
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=common.LEARNING_RATE)
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in range(steps):
        tokens, targets = (x.chunk(size)[rank] for x in common.batch(step))
        loss = common.loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(common.mean_over_ranks(loss))
    return losses, {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in model.state_dict().items()}


def check(steps: int, compiled: bool = False) -> None:
    common.compare("fsdp2", *train(steps, compiled), common.train_alone(steps))


if __name__ == "__main__":
    common.main(train, check, may_compile=True)

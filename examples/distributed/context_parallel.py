"""Context parallel: each rank has a part of every sequence; keys and values travel around the ring of ranks during attention.

torchrun --nproc-per-node 4 examples/distributed/context_parallel.py --check
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel


def train(steps: int) -> tuple[list[float], common.Weights]:
    mesh = init_device_mesh("neuron", (dist.get_world_size(),))
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=common.LEARNING_RATE)
    losses = []
    for step in range(steps):
        tokens, targets = (x.contiguous() for x in common.batch(step))
        positions = torch.arange(common.SEQUENCE, device="neuron")
        # Inside, the buffers hold this rank's part of the sequence, and attention sees the whole.
        with context_parallel(mesh, buffers=[tokens, targets, positions], buffer_seq_dims=[1, 1, 0]):
            loss = common.loss_of(model(tokens, positions), targets)
            loss.backward()
        for parameter in model.parameters():  # each rank has the gradients of its part
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(common.mean_over_ranks(loss))
    return losses, model.state_dict()


def check(steps: int) -> None:
    common.compare("context_parallel", *train(steps), common.train_alone(steps))


if __name__ == "__main__":
    common.main(train, check)

"""Pipeline parallel: each rank has some of the layers and passes activations on; several schedules.

torchrun --nproc-per-node 4 examples/distributed/pipeline.py --check
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, ScheduleZBVZeroBubble

# The schedules, with how many stages each rank has.
SCHEDULES: dict[str, tuple[type[PipelineScheduleSingle] | type[PipelineScheduleMulti], int]] = {
    "GPipe": (ScheduleGPipe, 1),
    "1F1B": (Schedule1F1B, 1),
    "Interleaved1F1B": (ScheduleInterleaved1F1B, 2),
    "InterleavedZeroBubble": (ScheduleInterleavedZeroBubble, 2),
    "ZBVZeroBubble": (ScheduleZBVZeroBubble, 2),
}
MICRO_BATCHES = 8  # at least twice the ranks less one, for the V schedule


class Stage(nn.Module):
    """Part ``index`` of ``count`` of the model. The first embeds, the last predicts; weights keep their names."""

    def __init__(self, model: common.Transformer, index: int, count: int) -> None:
        super().__init__()
        first, last = index == 0, index == count - 1
        self.embedding = model.embedding if first else None
        self.position = model.position if first else None
        layers = torch.arange(len(model.blocks)).tensor_split(count)[index].tolist()
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in layers})
        self.norm = model.norm if last else None
        self.head = model.head if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x) + self.position
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


def train(steps: int, schedule: str = "1F1B") -> tuple[list[float], common.Weights]:
    kind, per_rank = SCHEDULES[schedule]
    rank, size = dist.get_rank(), dist.get_world_size()
    count = size * per_rank
    # The V schedule folds back: a rank has stage i and stage count - 1 - i.
    indices = [rank, count - 1 - rank] if kind is ScheduleZBVZeroBubble else [rank + size * i for i in range(per_rank)]
    model = common.make_model()
    parts = [Stage(model, index, count) for index in indices]
    device = torch.device("neuron", torch.neuron.current_device())
    stages = [PipelineStage(part, index, count, device) for part, index in zip(parts, indices, strict=True)]
    runner = kind(stages if per_rank > 1 else stages[0], MICRO_BATCHES, loss_fn=common.loss_of)  # type: ignore[arg-type]
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=common.LEARNING_RATE)
    last = 0 if kind is ScheduleZBVZeroBubble else size - 1  # the rank with the last stage
    losses = []
    for step in range(steps):
        tokens, targets = common.batch(step)
        parts_of_loss: list[Tensor] = []
        runner.step(*([tokens] if 0 in indices else []), target=targets if rank == last else None, losses=parts_of_loss)
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(parts_of_loss).mean().detach() if rank == last else torch.zeros((), device=device)
        dist.broadcast(loss, last)
        losses.append(loss.item())
    return losses, {name: value for part in parts for name, value in part.state_dict().items()}


def check(steps: int, schedules: tuple[str, ...] = tuple(SCHEDULES)) -> None:
    alone = common.train_alone(steps)
    for schedule in schedules:
        common.compare(f"pipeline {schedule}", *train(steps, schedule), alone)


if __name__ == "__main__":
    common.main(train, check)

"""Two dimensions: tensor and sequence parallel within pairs of ranks, fully sharded data parallel across the pairs; loss parallel.

torchrun --nproc-per-node 4 examples/distributed/tp_fsdp.py --check
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def parallelize(model: common.Transformer, mesh: DeviceMesh, compiled: bool = False) -> nn.Module:
    """Activations between blocks are split along the sequence, heads and hidden units within them along the features."""
    tensor, data = mesh["tensor"], mesh["data"]
    parallelize_module(
        model,
        tensor,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate(), use_local_output=False),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    model.register_parameter("position", nn.Parameter(DTensor.from_local(model.position.detach(), tensor, [Replicate()])))
    for block in model.blocks:
        parallelize_module(
            block,
            tensor,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
                "feed_forward_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            },
        )
    parallelize_module(model.blocks[0], tensor, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)))
    for block in model.blocks:
        if compiled:
            block.compile(backend="neuron")  # with its collectives of the tensor dimension in the graph
        fully_shard(block, mesh=data)
    return fully_shard(model, mesh=data)


def train(steps: int, compiled: bool = False) -> tuple[list[float], common.Weights]:
    mesh = init_device_mesh("neuron", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize(common.make_model(), mesh, compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=common.LEARNING_RATE)
    data = mesh["data"]
    losses = []
    for step in range(steps):
        tokens, targets = (x.chunk(data.size())[data.get_local_rank()] for x in common.batch(step))
        with loss_parallel():
            loss = common.loss_of(model(tokens), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(common.mean_over_ranks(loss.full_tensor() if isinstance(loss, DTensor) else loss))
    return losses, {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in model.state_dict().items()}


def check(steps: int, compiled: bool = False) -> None:
    common.compare("tp_fsdp", *train(steps, compiled), common.train_alone(steps))


if __name__ == "__main__":
    common.main(train, check, may_compile=True)

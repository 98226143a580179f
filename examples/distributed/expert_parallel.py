"""Expert parallel: each rank has some of the experts of every layer; tokens travel to the experts that a router picks, and back.

torchrun --nproc-per-node 4 examples/distributed/expert_parallel.py --check
"""

from __future__ import annotations

import common
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional as F

EXPERTS = 8


class Experts(nn.Module):
    """Feed-forward networks of which each token passes one; of the EXPERTS, this rank has its part when ``group`` is given."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.group = group
        self.router = nn.Linear(common.WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, common.WIDTH, 2 * common.WIDTH) * 0.1)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * common.WIDTH, common.WIDTH) * 0.1)

    def keep_part(self) -> None:
        """Leaves only this rank's experts."""
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.up = nn.Parameter(self.up.detach().chunk(size)[rank].clone())
        self.down = nn.Parameter(self.down.detach().chunk(size)[rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probability, expert = self.router(tokens).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=EXPERTS)
        sorted_tokens = tokens[order]
        passed = self.run(sorted_tokens, counts) if self.group is None else self.travel(sorted_tokens, counts)
        result = torch.zeros_like(tokens).index_copy(0, order, passed)
        return (result * probability[:, None]).view_as(x)

    def run(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """``counts[i]`` tokens, one after the other, for local expert i."""
        ends = counts.cumsum(0).to(torch.int32)
        hidden = F.gelu(F.grouped_mm(tokens, self.up, offs=ends))
        return F.grouped_mm(hidden, self.down, offs=ends)

    def travel(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """To the ranks that have the experts, through these, and back."""
        assert self.group is not None
        size = dist.get_world_size(self.group)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self.group)
        send = counts.view(size, -1).sum(1).tolist()
        receive = received.view(size, -1).sum(1).tolist()
        arrived = all_to_all_single_autograd(tokens, receive, send, self.group)
        # They came ordered by sender, then expert; the experts want them together.
        label = torch.arange(EXPERTS // size, device=tokens.device).repeat(size).repeat_interleave(received)
        order = label.argsort(stable=True)
        passed = self.run(arrived[order], received.view(size, -1).sum(0))
        returned = torch.zeros_like(arrived).index_copy(0, order, passed)
        return all_to_all_single_autograd(returned, send, receive, self.group)


def make_model(group: dist.ProcessGroup | None = None) -> common.Transformer:
    torch.manual_seed(0)
    model = common.Transformer(layers=2)
    for block in model.blocks:
        block.feed_forward = Experts(group)
    model.to("neuron")
    if group is not None:
        for block in model.blocks:
            block.feed_forward.keep_part()
    return model


def is_expert(name: str) -> bool:
    return name.endswith(("feed_forward.up", "feed_forward.down"))


def train(steps: int) -> tuple[list[float], common.Weights]:
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model(dist.group.WORLD)
    optimizer = torch.optim.SGD(model.parameters(), lr=common.LEARNING_RATE)
    losses = []
    for step in range(steps):
        tokens, targets = (x.chunk(size)[rank] for x in common.batch(step))
        loss = common.loss_of(model(tokens), targets)
        loss.backward()
        for name, parameter in model.named_parameters():
            if is_expert(name):
                parameter.grad /= size  # it has seen the tokens of all ranks, each with the mean of its own share
            else:
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(common.mean_over_ranks(loss))
    weights = {}
    for name, value in model.state_dict().items():
        if is_expert(name):
            whole = value.new_empty(EXPERTS, *value.shape[1:])
            dist.all_gather_into_tensor(whole, value)
            value = whole
        weights[name] = value
    return losses, weights


def check(steps: int) -> None:
    common.compare("expert_parallel", *train(steps), common.train_alone(steps, make_model()))


if __name__ == "__main__":
    common.main(train, check)

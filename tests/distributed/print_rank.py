"""For torchrun: prints which rank this is and which device it uses."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group()
x = torch.ones(1, device="neuron")
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
# One write, line end and all: ranks share a pipe, and with PYTHONUNBUFFERED print() writes the line end by itself.
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} on {x.device.index}\n")
dist.destroy_process_group()

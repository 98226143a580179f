"""A process that ends right after a backward ends cleanly."""

from __future__ import annotations

import pytest

# The main thread keeps the GIL once it has it, so autograd's thread is still waiting for it when the script ends.
SCRIPT = """
import atexit, sys
import torch
from torch_neuronx import _exit
if sys.argv[1] == "without":
    atexit.unregister(_exit._settle)
x = torch.ones(64, device=sys.argv[2], requires_grad=True)
(x * 2).sum().backward()
sys.setswitchinterval(100)
(x * 2).sum().backward()
"""


@pytest.mark.parametrize("device", ["neuron:0", "neuron:1"])
def test_script_that_ends_with_a_backward(run_python, device):
    for _ in range(2):
        done = run_python(SCRIPT, "with", device)
        assert done.returncode == 0 and not done.stderr, done.stderr


def test_exit_touches_no_device_that_was_not_used(run_python):
    done = run_python(
        """
import torch
from torch_neuronx import _exit
x = torch.ones(64, device="neuron:1", requires_grad=True)
x.sum().backward()
_exit._settle()
print([torch.neuron.memory_reserved(i) > 0 for i in range(3)])
"""
    )
    assert done.stdout.split("\n")[0] == "[False, True, False]", done.stdout + done.stderr


def test_cpu_scripts_open_nothing_at_exit(run_python):
    done = run_python(
        """
import torch
from torch_neuronx import _exit
x = torch.ones(4, requires_grad=True)
x.sum().backward()
_exit._settle()
print(torch.neuron.is_initialized())
"""
    )
    assert done.stdout == "False\n" and not done.stderr, done.stderr

"""A second process finds what the first has compiled: on disk, and in a blob that it was handed."""

import json

# Compiles a training step, with everything that a cache entry holds (constants, a cut, dynamic sizes), and prints what happened.
STEP = """
import json, sys, torch
from torch._dynamo.utils import counters
{before}
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)).to("neuron")

def f(x):
    y = net(x) * torch.tensor([1.0, 2, 3], device="neuron")
    return y.sum() * 2 + y.detach().cpu().sum().to("neuron"), torch.linalg.solve(torch.eye(3, device="neuron") * 2, y.t())

compiled = torch.compile(f, backend="neuron", fullgraph=True, dynamic=True)
values = []
for rows in (4, 5, 4):
    x = torch.ones(rows, 6, device="neuron", requires_grad=True)
    loss, other = compiled(x)
    (loss + other.sum()).backward()
    values += [loss.item(), other.sum().item(), x.grad.sum().item()]
{after}
counts = {{name: counters["aot_autograd"][f"autograd_cache_{{name}}"] for name in ("hit", "miss", "bypass", "saved")}}
print(json.dumps([values, counts]))
"""


def step(run_python, before="", after="", **environment):
    run = run_python(STEP.format(before=before, after=after), timeout=240, **environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_on_disk(run_python, tmp_path):
    cold, counts = step(run_python, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    # Dynamo asks twice: at first it means to keep the factor 2 a symbol.
    assert counts["hit"] == counts["bypass"] == 0 and counts["saved"] == 1
    warm, counts = step(run_python, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert counts["hit"] == 1 and counts["bypass"] == counts["saved"] == 0 and warm == cold
    # Another fallback policy may mean another answer, so it is part of the key.
    _, counts = step(run_python, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCH_NEURONX_FALLBACK="allow")
    assert counts["hit"] == 0 and counts["saved"] == 1


def test_artifacts(run_python, tmp_path):
    file = tmp_path / "artifacts"
    save = f"open({str(file)!r}, 'wb').write(torch.compiler.save_cache_artifacts()[0])"
    cold, _ = step(run_python, after=save, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "first"))
    load = f"assert torch.compiler.load_cache_artifacts(open({str(file)!r}, 'rb').read()).aot_autograd_artifacts"
    warm, counts = step(run_python, before=load, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "second"))
    assert counts["hit"] == 1 and warm == cold

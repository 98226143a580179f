"""The life of a process: exit with work in flight, fork, signals. Each script runs in its own process under a time limit."""

import os
import signal
import subprocess
import sys
import time

import pytest

QUEUE_WORK = """
import torch
x = torch.randn(400, 400, device="neuron")
side = torch.neuron.Stream()
for _ in range(200):
    x = (x @ x).tanh()
with torch.neuron.stream(side):
    y = torch.randn(400, 400, device="neuron")
    for _ in range(100):
        y = (y @ y).tanh()
"""


@pytest.mark.parametrize("end", ["", "import sys; sys.exit(3)", "raise SystemExit(3)", "del x, y"])
def test_exit_with_work_in_flight(run_python, end):
    run = run_python(QUEUE_WORK + end)
    assert run.returncode == (3 if "3" in end else 0) and run.stderr == "", run.stderr


def test_exit_by_an_exception(run_python):
    run = run_python(QUEUE_WORK + "raise KeyError('mine')")
    assert run.returncode == 1 and run.stderr.strip().endswith("KeyError: 'mine'")


@pytest.mark.parametrize("end", ["raise KeyError('mine')", "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"])
def test_an_uncaught_exception_drops_what_is_queued(run_python, end):
    code = f"""
import atexit
def last():  # registered before the backend's own, so called after it
    torch.neuron.synchronize()
    print(last_launched.cpu())
atexit.register(last)
import os, signal, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
last_launched = torch.zeros(1, device="neuron").cpu().to("neuron")
x = torch.ones(700, 700, device="neuron")
for _ in range(1000):
    torch.mm(x, x)
last_launched.fill_(1)
{end}
"""
    run = run_python(code)
    assert run.returncode != 0 and "tensor([0.])" in run.stdout, run.stdout + run.stderr


def test_exit_with_a_pending_error(run_python):
    code = """
import torch
table, index = torch.ones(4, 2, device="neuron"), torch.tensor([0, 1], device="neuron")
for _ in range(3):
    torch.nn.functional.embedding(index, table)
index.fill_(9)
torch.nn.functional.embedding(index, table)
print("end")
"""
    run = run_python(code)
    assert (run.returncode, run.stdout) == (0, "end\n"), run.stderr


def test_exit_while_daemon_threads_wait_for_the_device(run_python):
    """(A daemon thread that runs operators aborts any PyTorch process at exit, on the CPU too: pytorch releases the GIL in destructors.)"""
    code = """
import threading, time, torch
x = torch.randn(400, 400, device="neuron")

def wait():
    while True:
        torch.neuron.synchronize()

for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
for _ in range(200):
    x = (x @ x).tanh()
print("end")
"""
    run = run_python(code)
    assert (run.returncode, run.stdout) == (0, "end\n"), run.stderr


def test_tensors_that_die_after_the_interpreter(run_python):
    code = """
import atexit, sys, torch
sys.modules["keeper"] = keeper = type(sys)("keeper")
keeper.x = torch.ones(1000, device="neuron")
keeper.model = torch.nn.Linear(10, 10).neuron()
keeper.cycle = [keeper.x]; keeper.cycle.append(keeper.cycle)
keeper.stream, keeper.event = torch.neuron.Stream(), torch.neuron.Event()
keeper.event.record()
atexit.register(lambda: print((keeper.x + 1).sum().item()))
"""
    run = run_python(code)
    assert (run.returncode, run.stdout, run.stderr) == (0, "2000.0\n", "")


# ---- fork ----

FORK = """
import os, sys

def in_child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_fork_of_a_script_that_used_the_device(run_python):
    code = f"""
{FORK}
import torch
x = torch.ones(3, device="neuron")
stream = torch.neuron.Stream()
for _ in range(100):
    x = x + 1

def check(use):
    try:
        use()
    except RuntimeError as error:
        assert "spawn" in str(error) and "forked" in str(error), error
    else:
        raise AssertionError("nothing was raised")

uses = [
    lambda: torch.empty(2, device="neuron"), lambda: x + 1, lambda: x.cpu(), lambda: x.sum().item(), lambda: x.add_(1),
    lambda: torch.ones(2).to("neuron"), torch.neuron.synchronize, torch.neuron.init, torch.neuron.Stream, lambda: torch.ones(2, 2).neuron(),
    lambda: torch.neuron.Event().record(), lambda: torch.neuron.stream(stream).__enter__(), stream.synchronize,
]
for index, use in enumerate(uses):
    assert in_child(lambda: check(use)) == 0, index

def harmless():
    global x
    assert torch.neuron._is_in_bad_fork() and not torch.neuron.is_initialized()
    torch.manual_seed(1)
    assert torch.ones(3).sum().item() == 3
    y = torch.ones(2, requires_grad=True); (y * y).sum().backward()
    del x

assert in_child(harmless) == 0
assert in_child(lambda: sys.exit(0)) == 1  # SystemExit is caught above: the child ends by os._exit
assert x.cpu().tolist() == [101.0] * 3 and not torch.neuron._is_in_bad_fork()
print("end")
"""
    run = run_python(code)
    assert (run.returncode, run.stdout) == (0, "SystemExit 0\nend\n"), run.stdout + run.stderr


def test_a_forked_child_may_exit_normally(run_python):
    code = """
import os, sys, torch
x = torch.randn(300, 300, device="neuron")
for _ in range(100):
    x = (x @ x).tanh()
pid = os.fork()
if pid == 0:
    sys.exit(5)  # runs atexit handlers and destructors in the child
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), torch.isfinite(x).all().item())
"""
    run = run_python(code)
    assert (run.returncode, run.stdout) == (0, "5 True\n"), run.stderr


def test_fork_of_a_cpu_only_script(run_python):
    code = f"""
{FORK}
import torch
torch.manual_seed(0)
w = torch.ones(2, requires_grad=True); (w * w).sum().backward()

def use_the_device():
    assert not torch.neuron._is_in_bad_fork()
    assert torch.ones(3, device="neuron").sum().item() == 3

assert in_child(use_the_device) == 0 and in_child(use_the_device) == 0
use_the_device()
print("end")
"""
    run = run_python(code)
    assert (run.returncode, run.stdout) == (0, "end\n"), run.stdout + run.stderr


def test_spawned_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import torch, torch.multiprocessing as mp

def work(rank, queue):
    queue.put((rank, torch.full((2,), float(rank), device="neuron").sum().item()))

if __name__ == "__main__":
    torch.ones(1, device="neuron").item()
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=work, args=(rank, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    print(sorted(queue.get(timeout=60) for _ in processes))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
""")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "[(0, 0.0), (1, 2.0)]\n"), run.stderr


# ---- signals ----

LONG = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner in the background may have set it to be ignored
import torch
x = torch.randn(256, 256, device="neuron")
print("ready", flush=True)
while True:
    x = (x @ x).tanh()
    {wait}
"""


@pytest.mark.parametrize("wait", ["torch.neuron.synchronize()", "pass", "x.sum().item()"])
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 1), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_end_a_busy_process(wait, number, status):
    process = subprocess.Popen([sys.executable, "-c", LONG.format(wait=wait)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    if number == signal.SIGINT:
        assert process.returncode in (1, -signal.SIGINT) and errors.strip().endswith("KeyboardInterrupt")
    else:
        assert process.returncode == status and errors == ""


def test_a_signal_handler_may_use_the_device(run_python):
    code = """
import os, signal, torch
x = torch.ones(4, device="neuron")
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append((x + 1).sum().item()))
for _ in range(200):
    y = (x * 2).sum()
    os.kill(os.getpid(), signal.SIGUSR1)
    y.item()
assert set(seen) == {8.0}, set(seen)
print("end")
"""
    run = run_python(code)
    assert (run.returncode, run.stdout) == (0, "end\n"), run.stderr


def test_the_process_leaves_nothing_behind(run_python):
    run = run_python(QUEUE_WORK + "import os; print(os.getpid())")
    pid = run.stdout.strip()
    assert not os.path.exists(f"/proc/{pid}")
    assert not [name for name in os.listdir("/dev/shm") if pid in name and "neuron" in name]


def test_ctrl_c_is_seen_while_the_host_runs_ahead(run_python):
    """A full queue makes the host wait, but only briefly at a time: Python sees the signal, however slow the queued work is."""
    code = """
import os, signal, threading, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner in the background may have set it to be ignored
x = torch.randn(600, 600, device="neuron")
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
issued = 0
try:
    while True:
        x = (x @ x).tanh()
        issued += 2
except KeyboardInterrupt:
    print("stopped")
"""
    run = run_python(code, timeout=60)
    assert run.returncode == 0 and run.stdout == "stopped\n", run.stderr

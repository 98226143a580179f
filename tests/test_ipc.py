"""Tensors that two processes of one host share. Every process here has a time limit; what a child runs is a function of this module."""

import contextlib
import gc
import os
import signal
import time
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp

from torch_neuronx import ipc

LIMIT = 60  # seconds; a child imports torch first


@contextlib.contextmanager
def child(function, *arguments):
    """A spawned process that runs ``function(inbox, outbox, *arguments)``; gives it with the two queues and ends it."""
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=function, args=(inbox, outbox, *arguments))
    process.start()
    try:
        yield process, inbox, outbox
    finally:
        inbox.put(None)
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()


def describe(x):
    return str(x.device), str(x.dtype), tuple(x.shape), x.stride(), x.storage_offset(), x.cpu().to(torch.complex64).tolist()


def describe_and_double(inbox, outbox):
    for x in iter(lambda: inbox.get(timeout=LIMIT), None):
        outbox.put(describe(x))
        x.copy_(x + x)
        torch.neuron.synchronize()
        del x
        outbox.put("done")


def hold(inbox, outbox, *tensors):
    tensors = [*tensors] or [inbox.get(timeout=LIMIT)]
    outbox.put([t.cpu().tolist() for t in tensors])
    inbox.get(timeout=LIMIT)


def produce(inbox, outbox):
    outbox.put(torch.arange(4.0, device="neuron:1") * 2)
    inbox.get(timeout=LIMIT)


def send_on(inbox, outbox):
    try:
        ForkingPickler.dumps(inbox.get(timeout=LIMIT))
    except RuntimeError as error:
        outbox.put(str(error))


def train(inbox, outbox, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 3, device="neuron")).sum().backward()
    optimizer.step()
    torch.neuron.synchronize()
    outbox.put("trained")


def allocated():
    gc.collect()
    torch.neuron.ipc_collect()
    return torch.neuron.memory_allocated()


def test_both_processes_see_the_same_memory():
    base = torch.arange(24.0).reshape(4, 6)
    tensors = [
        base.to("neuron"),
        base.to("neuron:1")[1:, ::2],
        base.to("neuron").t()[3],
        base.to(torch.bfloat16).to("neuron"),
        base.to(torch.complex64).to("neuron:1"),
        base.bool().to("neuron"),
    ]
    with child(describe_and_double) as (_, inbox, outbox):
        for x in tensors:
            before = describe(x)
            inbox.put(x)
            assert outbox.get(timeout=LIMIT) == before
            assert outbox.get(timeout=LIMIT) == "done"
            after = torch.tensor(before[-1])
            assert x.cpu().to(torch.complex64).tolist() == (after.bool().to(after.dtype) if x.dtype == torch.bool else after * 2).tolist()


def test_arguments_of_a_process():
    base = torch.arange(6.0, device="neuron")
    with child(hold, base, base[2:], base.sum(), torch.empty(0, 2, device="neuron"), torch.ones(2)) as (_, _, outbox):
        assert outbox.get(timeout=LIMIT) == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5], 15, [], [1, 1]]


def test_from_a_child():
    with child(produce) as (_, _, outbox):
        x = outbox.get(timeout=LIMIT)
        assert str(x.device) == "neuron:1" and x.tolist() == [0, 2, 4, 6]
    # The sender has ended: the pages stay ours.
    x.add_(1)
    assert x.tolist() == [1, 3, 5, 7]
    x.record_stream(torch.neuron.Stream(device=1))
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(1 << 20)


def test_memory_stays_until_the_receiver_is_done():
    before = allocated()
    with child(hold) as (process, inbox, outbox):
        x = torch.full((1 << 18,), 3.0, device="neuron")
        inbox.put(x)
        assert outbox.get(timeout=LIMIT)[0][-1] == 3
        del x
        assert allocated() == before + (1 << 20)
        inbox.put(None)
        process.join(LIMIT)
        assert process.exitcode == 0
        assert allocated() == before


def test_a_receiver_that_is_killed():
    before = allocated()
    with child(hold) as (process, inbox, outbox):
        inbox.put(torch.ones(1 << 18, device="neuron"))
        outbox.get(timeout=LIMIT)
        os.kill(process.pid, signal.SIGKILL)
        process.join(LIMIT)
        assert allocated() == before


def test_a_receiver_that_drops_the_tensor_while_it_is_in_use():
    torch.ones(512, 512, device="neuron").fill_(7)  # the first call of an operator may wait
    torch.neuron.ipc_collect()
    others = len(ipc._sent)
    x = torch.eye(512, device="neuron")
    y = z = ForkingPickler.loads(ForkingPickler.dumps(x))
    for _ in range(200):
        z = z @ y
    y.fill_(7)
    del y
    torch.neuron.ipc_collect()
    held, busy = len(ipc._sent) - others, not torch.neuron.current_stream().query()
    assert busy and held == 1
    torch.neuron.synchronize()
    deadline = time.monotonic() + LIMIT
    while len(ipc._sent) > others:  # a thread lets go
        assert time.monotonic() < deadline
        torch.neuron.ipc_collect()
    assert x.eq(7).all().item()


def test_a_sender_that_has_ended():
    with child(produce) as (process, inbox, outbox):
        inbox.put(None)
        process.join(LIMIT)
        with pytest.raises(RuntimeError, match=rf"process {process.pid}, which sent it, has ended .* Keep the sender"):
            outbox.get(timeout=LIMIT)


def test_a_received_tensor_is_not_sent_on():
    with child(send_on) as (_, inbox, outbox):
        inbox.put(torch.ones(2, device="neuron"))
        assert "received from another process" in (message := outbox.get(timeout=LIMIT)) and "send tensor.clone()" in message


def test_a_model_that_two_processes_train():
    model = torch.nn.Linear(3, 2).to("neuron").share_memory()
    before = model.weight.detach().cpu()
    with child(train, model) as (_, _, outbox):
        assert outbox.get(timeout=LIMIT) == "trained"
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.4)


def test_within_one_process():
    x = torch.nn.Parameter(torch.arange(3.0, device="neuron"))
    y = ForkingPickler.loads(ForkingPickler.dumps(x))
    assert isinstance(y, torch.nn.Parameter) and y.requires_grad
    with torch.no_grad():
        y.mul_(2)
    torch.neuron.synchronize()
    assert x.tolist() == [0, 2, 4] and x.is_shared() and x.share_memory_() is x
    sparse = torch.eye(3).to_sparse().to("neuron")
    assert torch.equal(ForkingPickler.loads(ForkingPickler.dumps(sparse)).to_dense().cpu(), torch.eye(3))
    assert ForkingPickler.loads(ForkingPickler.dumps(torch.ones(2))).tolist() == [1, 1]


def test_nothing_is_left_of_what_was_sent():
    before, files = allocated(), len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        x = torch.ones(1000, device="neuron")
        assert ForkingPickler.loads(ForkingPickler.dumps(x)).sum().item() == 1000
    del x
    torch.neuron.synchronize()
    deadline = time.monotonic() + LIMIT
    while allocated() > before and time.monotonic() < deadline:
        pass  # what was in use when it was dropped is let go by a thread
    assert allocated() == before and len(os.listdir("/proc/self/fd")) <= files + 3


def test_without_access_from_the_host(run_python):
    """Under TORCH_NEURONX_GUARD=1 kernels reach device memory through another address; so they do in what was received."""
    code = "if __name__ == '__main__':\n    from tests.test_ipc import *\n    test_within_one_process(); test_from_a_child(); print('fine')"
    run = run_python(code, timeout=120, TORCH_NEURONX_GUARD="1")
    assert run.stdout == "fine\n", run.stderr

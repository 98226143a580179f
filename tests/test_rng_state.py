"""The generators: seeds, states, copies. What the numbers are is tests/test_random.py's business."""

import pytest
import torch

neuron = torch.neuron


def draw(count=8, device="neuron", **kwargs):
    return torch.rand(count, device=device, **kwargs).cpu()


def test_torch_manual_seed_seeds_the_devices():
    torch.manual_seed(7)
    first, other = draw(), draw(device="neuron:1")
    torch.manual_seed(7)
    assert torch.equal(draw(), first) and torch.equal(draw(device="neuron:1"), other)
    assert neuron.initial_seed() == 7


def test_state_is_16_bytes_of_seed_and_offset():
    neuron.manual_seed(5)
    state = neuron.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.numel() == 16
    assert state.view(torch.int64).tolist() == [5, 0]
    draw()
    seed, offset = neuron.get_rng_state("neuron:0").view(torch.int64).tolist()
    assert seed == 5 and offset > 0 and offset % 4 == 0


def test_state_roundtrip():
    neuron.manual_seed(11)
    draw()
    state = neuron.get_rng_state()
    first = draw()
    neuron.set_rng_state(state)
    assert torch.equal(draw(), first)


def test_state_of_all_devices():
    states = neuron.get_rng_state_all()
    assert len(states) == neuron.device_count() == len(neuron.default_generators)
    before = [draw(device=f"neuron:{index}") for index in range(len(states))]
    neuron.set_rng_state_all(states)
    assert all(torch.equal(draw(device=f"neuron:{index}"), old) for index, old in enumerate(before))


def test_seed_and_seed_all():
    neuron.seed()
    first = neuron.initial_seed()
    neuron.seed()
    assert neuron.initial_seed() != first
    neuron.seed_all()
    assert len({generator.initial_seed() for generator in neuron.default_generators}) == 1
    neuron.manual_seed_all(3)
    assert {generator.initial_seed() for generator in neuron.default_generators} == {3}


@pytest.mark.parametrize("seed", [0, -1, 2**64 - 1, -(2**63)])
def test_seeds_of_all_sizes(seed):
    neuron.manual_seed(seed)
    assert neuron.initial_seed() == seed % 2**64


def test_own_generator():
    generator = torch.Generator(device="neuron")
    assert generator.device == torch.device("neuron:0")
    generator.manual_seed(21)
    first = draw(generator=generator)
    generator.manual_seed(21)
    assert torch.equal(draw(generator=generator), first)
    assert torch.Generator(device="neuron:2").device.index == 2


def test_own_generator_leaves_the_default_alone():
    neuron.manual_seed(1)
    state = neuron.get_rng_state()
    draw(generator=torch.Generator(device="neuron").manual_seed(9))
    assert torch.equal(neuron.get_rng_state(), state)


def test_clone_and_graphsafe_state():
    generator = torch.Generator(device="neuron").manual_seed(4)
    draw(generator=generator)
    copy = generator.clone_state()
    shared = torch.Generator(device="neuron")
    shared.graphsafe_set_state(generator.graphsafe_get_state())
    first = draw(generator=generator)
    assert torch.equal(draw(generator=copy), first)
    assert torch.equal(shared.get_state(), generator.get_state())  # one state, two handles


def test_offset():
    generator = torch.Generator(device="neuron").manual_seed(4)
    draw(generator=generator)
    offset = generator.get_offset()
    first = draw(generator=generator)
    generator.set_offset(offset)
    assert torch.equal(draw(generator=generator), first)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)


def test_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="generator"):
        draw(generator=torch.Generator())
    with pytest.raises(RuntimeError, match="neuron:1"):
        draw(generator=torch.Generator(device="neuron:1"))


@pytest.mark.parametrize("state", [torch.zeros(15, dtype=torch.uint8), torch.zeros(16), torch.zeros(32, dtype=torch.uint8)[::2]])
def test_bad_states_are_refused_and_change_nothing(state):
    neuron.manual_seed(2)
    with pytest.raises((RuntimeError, TypeError), match="RNG state"):
        neuron.set_rng_state(state)
    assert neuron.initial_seed() == 2


def test_fork_rng():
    neuron.manual_seed_all(6)
    before = neuron.get_rng_state_all()
    with torch.random.fork_rng(devices=range(neuron.device_count()), device_type="neuron"):
        draw()
        neuron.manual_seed_all(99)
    assert all(torch.equal(old, new) for old, new in zip(before, neuron.get_rng_state_all(), strict=True))


def test_checkpoint_replays_dropout():
    torch.manual_seed(0)
    x = torch.ones(64, device="neuron", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, x, 0.5, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad.cpu(), y.detach().cpu())


def test_seeding_opens_no_device(run_python):
    run = run_python("import torch; torch.manual_seed(1); torch.neuron.seed_all(); print(torch.neuron.is_initialized())")
    assert run.stdout.split() == ["False"], run.stderr

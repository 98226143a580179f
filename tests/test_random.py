"""Random ops: the words of Philox as Note [Random stream] in csrc/aten/philox.h defines them, distributions, seeds and generators."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from tests.threads import on_threads

DEVICE = "neuron"
SEED = 2**40 + 12345


# ---- The definition, a second time ----


def philox_words(seed: int, offset: int, count: int) -> np.ndarray:
    """Words [0, count) of a call that owns (seed, offset): uint64 array of 32-bit values."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    block = np.arange(offset // 4, offset // 4 + -(-count // 4), dtype=np.uint64)
    c = [block & low, block >> shift, np.zeros_like(block), np.zeros_like(block)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(key[0]), p1 & low, (p0 >> shift) ^ c[3] ^ np.uint64(key[1]), p0 & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1).reshape(-1)[:count]


def philox_words64(seed: int, offset: int, count: int) -> np.ndarray:
    words = philox_words(seed, offset, 2 * count)
    return words[0::2] | words[1::2] << np.uint64(32)


def test_reference_gives_the_published_vector() -> None:
    assert [hex(word) for word in philox_words(0, 0, 4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def seeded(offset: int = 0) -> torch.Generator:
    generator = torch.Generator(DEVICE).manual_seed(SEED)
    if offset:
        generator.set_offset(offset)
    return generator


@pytest.mark.parametrize("offset", [0, 4, 2**34 - 8])
@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float64, 53), (torch.float16, 11), (torch.bfloat16, 8)], ids=str)
def test_uniform_is_the_top_bits_of_the_words(dtype: torch.dtype, digits: int, offset: int) -> None:
    got = torch.empty(3001, dtype=dtype, device=DEVICE).uniform_(generator=seeded(offset)).double().cpu().numpy()
    wide = dtype == torch.float64
    words = philox_words64(SEED, offset, 3001) if wide else philox_words(SEED, offset, 3001)
    assert np.array_equal(got, (words >> np.uint64((64 if wide else 32) - digits)).astype(np.float64) * 2.0**-digits)


def test_whole_numbers_are_scaled_64_bit_words() -> None:
    words = [int(word) for word in philox_words64(SEED, 0, 500)]
    for low, high, dtype in [(0, 10, torch.int64), (-7, 50257, torch.int32), (0, 2**40, torch.int64), (-128, 128, torch.int8)]:
        got = torch.randint(low, high, (500,), dtype=dtype, device=DEVICE, generator=seeded())
        assert got.tolist() == [low + (word * (high - low) >> 64) for word in words]
    full = torch.empty(500, dtype=torch.int64, device=DEVICE).random_(-(2**63), None, generator=seeded())
    assert full.tolist() == [word - 2**64 if word >= 2**63 else word for word in words]


def test_bernoulli_and_dropout_compare_words() -> None:
    words = philox_words(SEED, 0, 4097)
    chosen = torch.empty(4097, device=DEVICE).bernoulli_(0.3, generator=seeded())
    assert np.array_equal(chosen.cpu().numpy() == 1, words < round(0.3 * 2**32))
    torch.manual_seed(SEED)
    x = torch.randn(4097)
    torch.neuron.manual_seed(SEED)
    out, mask = torch.native_dropout(x.to(DEVICE), 0.7, True)
    kept = words < round((1 - 0.7) * 2**32)
    assert np.array_equal(mask.cpu().numpy(), kept)
    torch.testing.assert_close(out.cpu(), x * torch.from_numpy(kept) / (1 - 0.7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_normal_is_box_muller(dtype: torch.dtype) -> None:
    got = torch.empty(2000, dtype=dtype, device=DEVICE).normal_(1, 2, generator=seeded()).cpu().double().numpy()
    wide = dtype == torch.float64
    words = philox_words64(SEED, 0, 2000) if wide else philox_words(SEED, 0, 2000)
    unit = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52 if wide else (words.astype(np.float64) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2 * np.log(unit[0::2])), 2 * np.pi * words[1::2].astype(np.float64) * 2.0 ** (-64 if wide else -32)
    expected = 1 + 2 * np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    assert np.abs(got - expected).max() < (1e-13 if wide else 5e-6)


@pytest.mark.parametrize("n", [0, 1, 2, 17, 1000, 70000])
def test_randperm_sorts_keys(n: int) -> None:
    got = torch.randperm(n, device=DEVICE, generator=seeded())
    assert np.array_equal(got.cpu().numpy(), np.argsort(philox_words64(SEED, 0, n), kind="stable"))


# ---- Distributions ----

N = 40_000

CONTINUOUS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], "stats.rv_continuous"]] = {
    "uniform": (lambda x: x.uniform_(-2, 5), stats.uniform(-2, 7)),
    "normal": (lambda x: x.normal_(3, 0.5), stats.norm(3, 0.5)),
    "log_normal": (lambda x: x.log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=np.exp(0.5))),
    "exponential": (lambda x: x.exponential_(2.5), stats.expon(scale=1 / 2.5)),
    "cauchy": (lambda x: x.cauchy_(1, 2), stats.cauchy(1, 2)),
    "gamma": (lambda x: torch._standard_gamma(torch.full_like(x, 2.5)), stats.gamma(2.5)),
    "dirichlet": (
        lambda x: torch._sample_dirichlet(torch.tensor([2.0, 3.0], dtype=x.dtype, device=x.device).expand(len(x), 2))[:, 0],
        stats.beta(2, 3),
    ),
    "rrelu slope": (lambda x: F.rrelu(torch.full_like(x, -1.0), 0.1, 0.4, training=True).neg(), stats.uniform(0.1, 0.3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distribution(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    draw, exact = CONTINUOUS[name]
    values = draw(torch.empty(N, dtype=dtype, device=DEVICE)).cpu().double().numpy()
    assert stats.kstest(values, exact.cdf).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_keeps_its_moments_and_bounds(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    normal = torch.randn(N, dtype=dtype, device=DEVICE).double()
    assert abs(normal.mean().item()) < 0.02 and abs(normal.std().item() - 1) < 0.02
    uniform = torch.rand(N, dtype=dtype, device=DEVICE)
    assert uniform.min().item() >= 0 and uniform.max().item() < 1
    assert torch.empty(N, dtype=dtype, device=DEVICE).exponential_().min().item() > 0


DISCRETE: dict[str, tuple[Callable[[], torch.Tensor], list[float]]] = {
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.2, device=DEVICE)), [0.8, 0.2]),
    "randint": (lambda: torch.randint(0, 7, (N,), device=DEVICE), [1 / 7] * 7),
    "random_ of bool": (lambda: torch.empty(N, dtype=torch.bool, device=DEVICE).random_(), [0.5, 0.5]),
    "geometric": (
        lambda: torch.empty(N, device=DEVICE).geometric_(0.4).clamp_max(6),
        [0.0] + [0.4 * 0.6**k for k in range(5)] + [0.6**5],
    ),
    "poisson": (
        lambda: torch.poisson(torch.full((N,), 3.0, device=DEVICE)).clamp_max(8),
        [*stats.poisson(3).pmf(range(8)), stats.poisson(3).sf(7)],
    ),
    "binomial": (
        lambda: torch.binomial(torch.full((N,), 5.0, device=DEVICE), torch.full((N,), 0.3, device=DEVICE)),
        list(stats.binom(5, 0.3).pmf(range(6))),
    ),
    "multinomial with replacement": (
        lambda: torch.multinomial(torch.tensor([1.0, 0.0, 3.0, 6.0], device=DEVICE), N, replacement=True),
        [0.1, 0.0, 0.3, 0.6],
    ),
    "multinomial, first of two": (
        lambda: torch.multinomial(torch.tensor([1.0, 0.0, 3.0, 6.0], device=DEVICE).expand(N, 4), 2)[:, 0],
        [0.1, 0.0, 0.3, 0.6],
    ),
    "first place of a permutation": (lambda: torch.stack([torch.randperm(4, device=DEVICE)[0] for _ in range(2000)]), [0.25] * 4),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distribution(name: str) -> None:
    torch.manual_seed(11)
    draw, chances = DISCRETE[name]
    drawn = draw().long().cpu()
    counts = torch.bincount(drawn, minlength=len(chances)).numpy()
    assert len(counts) == len(chances)
    possible = np.array(chances) > 0
    assert not counts[~possible].any()
    assert stats.chisquare(counts[possible], np.array(chances)[possible] * len(drawn)).pvalue > 1e-4


def test_samples_without_replacement_differ() -> None:
    drawn = torch.multinomial(torch.rand(50, 20, device=DEVICE), 20).cpu()
    assert torch.equal(drawn.sort(1).values, torch.arange(20).expand(50, 20))


def test_nearby_offsets_and_seeds_are_independent() -> None:
    first, second = torch.randn(N, device=DEVICE, generator=seeded()), torch.randn(N, device=DEVICE, generator=seeded(4))
    third = torch.randn(N, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(SEED + 1))
    for other in (second, third):
        assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1].item()) < 0.02
        assert not torch.equal(first, other)


# ---- The same seed gives the same bits, whatever the shape of the memory or the machine's state ----

FILLS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "uniform": lambda x, g: x.uniform_(generator=g),
    "normal": lambda x, g: x.normal_(generator=g),
    "exponential": lambda x, g: x.exponential_(generator=g),
    "random": lambda x, g: x.random_(0, 1000, generator=g),
    "bernoulli": lambda x, g: x.bernoulli_(0.5, generator=g),
    "bernoulli by tensor": lambda x, g: x.bernoulli_(torch.full_like(x, 0.5), generator=g),
    "geometric": lambda x, g: x.geometric_(0.3, generator=g),
}


@pytest.mark.parametrize("name", FILLS)
def test_strides_do_not_matter(name: str) -> None:
    fill = FILLS[name]
    expected = fill(torch.empty(4, 6, 5, 3, device=DEVICE), seeded())
    permuted = torch.empty(3, 6, 4, 5, device=DEVICE).permute(2, 1, 3, 0)
    channels_last = torch.empty(4, 6, 5, 3, device=DEVICE).to(memory_format=torch.channels_last)
    sliced = torch.empty(4, 12, 5, 7, device=DEVICE)[:, ::2, :, 2:5]
    for target in (permuted, channels_last, sliced):
        assert torch.equal(fill(target, seeded()), expected)


@pytest.mark.parametrize("name", FILLS)
def test_a_shorter_tensor_gets_the_first_elements(name: str) -> None:
    fill = FILLS[name]
    whole = fill(torch.empty(5000, device=DEVICE), seeded())
    for length in (1, 2, 63, 1024, 1025, 4999):
        assert torch.equal(fill(torch.empty(length, device=DEVICE), seeded()), whole[:length])


def test_dropout_does_not_depend_on_strides() -> None:
    x = torch.randn(4, 6, 5, 3, device=DEVICE)
    results = []
    for copy in (x, x.to(memory_format=torch.channels_last), x.transpose(1, 2).contiguous().transpose(1, 2)):
        torch.neuron.manual_seed(3)
        out = F.dropout(copy, 0.4)
        assert out.stride() == copy.stride()
        results.append(out)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_host_threads_do_not_matter() -> None:
    expected = torch.randn(300_000, device=DEVICE, generator=seeded()).cpu()
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert torch.equal(torch.randn(300_000, device=DEVICE, generator=seeded()).cpu(), expected)
    finally:
        torch.set_num_threads(threads)


def test_streams_take_words_in_the_order_of_the_calls() -> None:
    torch.neuron.manual_seed(5)
    expected = [torch.randn(1000, device=DEVICE) for _ in range(4)]
    torch.neuron.manual_seed(5)
    streams = [torch.Stream(DEVICE) for _ in range(4)]
    got = []
    for stream in streams:
        with stream:
            got.append(torch.randn(1000, device=DEVICE))
    torch.accelerator.synchronize()
    assert all(map(torch.equal, got, expected))


def test_threads_share_a_generator_without_sharing_words() -> None:
    generator = seeded()
    drawn: list[torch.Tensor] = []

    def work(_: int) -> None:
        for _ in range(50):
            drawn.append(torch.randint(-(2**62), 2**62, (64,), device=DEVICE, generator=generator))

    on_threads(work)
    values = torch.cat(drawn).cpu()
    assert values.unique().numel() == values.numel() == 4 * 50 * 64
    assert generator.get_offset() == 4 * 50 * 128


# ---- Generators ----


def test_manual_seed_repeats_and_calls_advance() -> None:
    torch.manual_seed(9)
    first, second = torch.rand(5, device=DEVICE), torch.rand(5, device=DEVICE)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(5, device=DEVICE), first) and torch.equal(torch.rand(5, device=DEVICE), second)
    assert not torch.equal(first, second)


def test_state_resumes() -> None:
    torch.rand(7, device=DEVICE)
    state = torch.neuron.get_rng_state()
    expected = torch.randn(9, device=DEVICE)
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.randn(9, device=DEVICE), expected)


def test_fork_rng_restores() -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=range(torch.neuron.device_count()), device_type="neuron"):
        inside = torch.rand(3, device=DEVICE)
    assert torch.equal(torch.rand(3, device=DEVICE), inside)


def test_a_generator_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator("cpu"))
    with pytest.raises(RuntimeError, match="generator"):
        torch.empty(3, device=DEVICE).normal_(generator=torch.Generator("cpu"))


RANDOM_CALLS: list[Callable[[torch.Tensor], object]] = [
    lambda x: torch.rand_like(x),
    lambda x: torch.randn(3, device=DEVICE),
    lambda x: torch.randint_like(x, 5),
    lambda x: torch.randperm(6, device=DEVICE),
    lambda x: torch.bernoulli(x),
    lambda x: torch.normal(x, 1.0),
    lambda x: torch.normal(x, x),
    lambda x: torch.normal(0.0, x),
    lambda x: torch.poisson(x),
    lambda x: torch.binomial(x, x),
    lambda x: torch.multinomial(x, 2),
    lambda x: torch._standard_gamma(x),
    lambda x: torch._sample_dirichlet(x),
    lambda x: F.rrelu(x, training=True),
    lambda x: F.dropout(x),
    lambda x: F.dropout2d(x[None, :, None, None]),
    lambda x: F.alpha_dropout(x, training=True),
    lambda x: F.feature_alpha_dropout(x[None, :, None, None], training=True),
    lambda x: x.clone().cauchy_(),
    lambda x: x.clone().log_normal_(),
    lambda x: x.clone().geometric_(0.5),
    lambda x: x.clone().exponential_(),
    lambda x: x.clone().random_(),
    lambda x: torch.nn.init.trunc_normal_(x.clone()),
    lambda x: F.gumbel_softmax(x),
    lambda x: torch.distributions.Beta(x + 1, x + 1).sample(),
    lambda x: F.scaled_dot_product_attention(x[None, None, None], x[None, None, None], x[None, None, None], dropout_p=0.5),
]


@pytest.mark.parametrize("index", range(len(RANDOM_CALLS)))
def test_random_ops_use_the_device_generator_only(index: int) -> None:
    x = torch.full((8,), 0.5, device=DEVICE)
    host, device = torch.get_rng_state(), torch.neuron.get_rng_state()
    RANDOM_CALLS[index](x)
    torch.accelerator.synchronize()
    assert torch.equal(torch.get_rng_state(), host), "drew from the CPU's generator"
    assert not torch.equal(torch.neuron.get_rng_state(), device), "did not advance the device's generator"


def test_every_random_overload_is_ours_or_a_composite() -> None:
    """No overload that PyTorch tags as random may reach the front end's boxed kernel: its draws would be the CPU's."""
    no_dropout = "aten::_scaled_dot_product_flash_attention_for_cpu"
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or schema.name == no_dropout:
            continue
        packet = getattr(torch.ops.aten, schema.name[6:], None)
        overload = getattr(packet, schema.overload_name or "default", None)
        if overload is None or torch.Tag.nondeterministic_seeded not in overload.tags:
            continue
        name = overload.name()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"), f"{name} has no kernel of ours"


# ---- Seeds are no part of the cache key ----


def cache_misses() -> int:
    from torch_neuronx import _C

    return sum(op["misses"] for op in _C._counters()["ops"].values())


def test_new_seeds_and_parameters_hit_the_cache() -> None:
    x = torch.empty(100, device=DEVICE)

    def step(number: int) -> None:
        x.normal_(number, number)
        x.uniform_(0, number)
        x.geometric_(0.01 * number)
        F.dropout(x, 0.01 * number)

    step(1)
    before = cache_misses()
    for number in range(2, 20):
        step(number)
    assert cache_misses() == before


# ---- Dropout in training ----


def test_dropout_trains_and_evaluates() -> None:
    layer = torch.nn.Dropout(0.25).to(DEVICE)
    x = torch.ones(10_000, device=DEVICE, requires_grad=True)
    out = layer(x)
    kept = out.detach() != 0
    assert abs(kept.double().mean().item() - 0.75) < 0.02
    assert torch.equal(out.detach()[kept], torch.full_like(out.detach()[kept], 1 / 0.75))
    out.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, out.detach())
    layer.eval()
    assert torch.equal(layer(x), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dropout_in_other_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(5000, dtype=dtype, device=DEVICE)
    torch.neuron.manual_seed(2)
    out, mask = torch.native_dropout(x, 0.5, True)
    assert out.dtype == dtype and torch.equal(out, x * mask * 2)


def test_dropout_edges() -> None:
    x = torch.randn(100, device=DEVICE)
    assert torch.equal(F.dropout(x, 0.0), x)
    assert torch.equal(F.dropout(x, 1.0), torch.zeros_like(x))
    assert F.dropout(x[:0], 0.5).shape == (0,)
    assert not F.dropout(x, 0.5, training=False).ne(x).any()


# ---- Arguments are checked as on the CPU ----

WRONG: list[Callable[[str], object]] = [
    lambda device: torch.empty(3, device=device).uniform_(1, 0),
    lambda device: torch.empty(3, device=device).normal_(0, -1),
    lambda device: torch.empty(3, device=device).bernoulli_(1.5),
    lambda device: torch.empty(3, device=device).exponential_(-1),
    lambda device: torch.empty(3, device=device).geometric_(0),
    lambda device: torch.empty(3, device=device).log_normal_(0, 0),
    lambda device: torch.empty(3, device=device).cauchy_(0, 0),
    lambda device: torch.empty(3, device=device).random_(5, 5),
    lambda device: torch.empty(3, dtype=torch.uint8, device=device).random_(0, 300),
    lambda device: torch.multinomial(torch.ones(3, device=device), 4),
    lambda device: torch.multinomial(torch.ones(3, dtype=torch.int64, device=device), 1),
    lambda device: torch.multinomial(torch.ones(2, 2, 2, device=device), 1),
    lambda device: torch.multinomial(torch.zeros(3, device=device), 1),
    lambda device: torch.randperm(-1, device=device),
    lambda device: torch.empty(3, device=device)[:1].expand(3).bernoulli_(0.5),
]


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_wrong_arguments_raise_what_the_cpu_raises(index: int) -> None:
    with pytest.raises(RuntimeError) as expected:
        WRONG[index]("cpu")
    with pytest.raises(RuntimeError) as got:
        WRONG[index](DEVICE)
        torch.accelerator.synchronize()
    assert str(expected.value).split(" Exception raised")[0][:60] in str(got.value)


def test_wrong_probabilities_of_a_later_call_surface_at_the_next_synchronisation() -> None:
    target = torch.empty(3, device=DEVICE)
    target.bernoulli_(torch.full((3,), 0.5, device=DEVICE))
    target.bernoulli_(torch.full((3,), 1.5, device=DEVICE))
    with pytest.raises(RuntimeError, match="p_in >= 0 && p_in <= 1"):
        torch.accelerator.synchronize()
    assert target.bernoulli_(torch.ones(3, device=DEVICE)).tolist() == [1, 1, 1]

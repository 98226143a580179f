"""``nki.replace``: kernels in place of sequences of ATen operators."""

import nki
import nki.language as nl
import pytest
import torch

from tests.nki.small_kernels import softmax, softmax_kernel


@nki.jit
def wrong_kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.exp(nl.load(x)))
    return out


def scaled(x, y):
    return x * 3.0 + y


@nki.jit
def scaled_kernel(x, y):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.multiply(nl.load(x), 3.0), nl.load(y)))
    return out


@pytest.fixture
def replace():
    torch._dynamo.reset()
    made = []

    def make(*args, **options):
        made.append(nki.replace(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.remove()


def compiled(function, **options):
    return torch.compile(function, backend="neuron", fullgraph=True, **options)


def rows(n=16, columns=32):
    return torch.randn(n, columns, device="neuron")


def test_a_matched_sequence_becomes_one_call(replace):
    replacement = replace(softmax, softmax_kernel)
    x = rows()
    with torch.neuron.explain() as report:
        got = compiled(lambda t: softmax(t * 2) + softmax(t))(x)
    torch.testing.assert_close(got, torch.softmax(x * 2, -1) + torch.softmax(x, -1))
    assert replacement.replaced == 2
    assert report.as_dict()["compile"]["graphs"][0]["cuts"] == {"custom operator nki::replacement": 2}


def test_a_wrong_kernel_is_found_at_its_first_use(replace):
    replace(softmax, wrong_kernel)
    with pytest.raises(RuntimeError, match=r"does not compute what softmax#\d+ computes.*float32 \[16, 32\]"):
        compiled(softmax)(rows())


def test_numbers_belong_to_the_pattern(replace):
    replacement = replace(scaled, scaled_kernel)
    x, y = rows(), rows()
    torch.testing.assert_close(compiled(lambda a, b: a * 4.0 + b)(x, y), x * 4 + y)
    assert replacement.replaced == 0 and "not their numbers" in replacement.refused[0]
    torch.testing.assert_close(compiled(lambda a, b: (a + 1) * 3.0 + b)(x, y), (x + 1) * 3 + y)
    assert replacement.replaced == 1


def test_an_inner_value_that_is_needed_elsewhere_keeps_the_operators(replace):
    replacement = replace(scaled, scaled_kernel)

    def both(a, b):
        inner = a * 3.0
        return inner + b, inner

    x, y = rows(), rows()
    torch.testing.assert_close(compiled(both)(x, y), both(x, y))
    assert replacement.replaced == 0


def test_a_kernel_that_refuses_the_shapes_is_not_used(replace):
    replacement = replace(scaled, scaled_kernel, example_inputs=(rows(), rows()))
    x, y = rows(200), rows(200)  # more rows than partitions
    torch.testing.assert_close(compiled(scaled)(x, y), x * 3 + y)
    assert replacement.replaced == 0 and "the kernel refuses the arguments" in replacement.refused[0]


def test_dynamic_sizes(replace):
    replacement = replace(softmax, softmax_kernel)
    run = compiled(lambda t: softmax(t) * 2, dynamic=True)
    for n in (16, 32, 64):
        x = rows(n)
        torch.testing.assert_close(run(x), torch.softmax(x, -1) * 2)
    assert replacement.replaced == 1


def test_removed(replace):
    replacement = replace(softmax, softmax_kernel)
    replacement.remove()
    compiled(softmax)(rows())
    assert replacement.replaced == 0


def test_tolerances_come_together():
    with pytest.raises(ValueError, match="both rtol= and atol="):
        nki.replace(softmax, softmax_kernel, rtol=1e-3)


def test_the_pattern_on_its_own_result(replace):
    replacement = replace(scaled, scaled_kernel)
    x, y = rows(), rows()
    torch.testing.assert_close(compiled(lambda a, b: scaled(scaled(scaled(a, b), b), b))(x, y), scaled(scaled(scaled(x, y), y), y))
    assert (replacement.replaced, replacement.refused) == (3, [])


def test_a_number_where_the_pattern_has_a_tensor_is_left_alone(replace):
    replacement = replace(scaled, scaled_kernel)
    x = rows()
    torch.testing.assert_close(compiled(lambda a: a * 3.0 + 1.0)(x), x * 3 + 1)
    assert replacement.replaced == 0 and "no tensor" in replacement.refused[0]


@nki.jit
def exp_kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.exp(nl.load(x)))
    return out


class Exponential(torch.nn.Module):
    def forward(self, x):
        return torch.exp(x)


def test_kinds_of_patterns(replace):
    x = rows()
    for pattern, options in (
        (Exponential(), {}),
        (lambda t, factor=1.0: torch.exp(t), {}),
        (torch.exp, {"example_inputs": (x,)}),
    ):
        torch._dynamo.reset()
        replacement = replace(pattern, exp_kernel, **options)
        torch.testing.assert_close(compiled(lambda t: torch.exp(t) + 1)(x), torch.exp(x) + 1)
        assert replacement.replaced == 1
        replacement.remove()


@pytest.mark.parametrize("pattern", [torch.exp, lambda *tensors: tensors[0] + 1], ids=["built-in", "any number"])
def test_a_pattern_says_how_many_tensors_it_takes(pattern):
    with pytest.raises(TypeError, match=r"does not say how many tensors it takes\. Pass example_inputs="):
        nki.replace(pattern, exp_kernel)

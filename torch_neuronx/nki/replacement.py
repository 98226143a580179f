"""``nki.replace(pattern, kernel)``: a kernel in place of a sequence of ATen operators, in compiled graphs and in windows (windows.py).

The pattern is a PyTorch function. A graph is searched in two steps, with PyTorch's SubgraphMatcher: for the operators of the pattern with
whatever numbers, then, with the pattern traced for the very tensors that were found, for the same numbers too. What takes the place of a
match is one call of the operator ``nki::replacement``, whose fake implementation is the kernel's own.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

from torch_neuronx.compile import rewrites
from torch_neuronx.nki import windows
from torch_neuronx.nki.plain_form import arguments_of, listed

_numbers = itertools.count()
_replacements: dict[str, Replacement] = {}
_RANKS = (2, 3, 4, 1)
Form = Callable[[GraphModule, Sequence[torch.Tensor]], "GraphModule | None"]
Refusal = Callable[[InternalMatch, Sequence[torch.Tensor], Callable[..., Any], Callable[..., Any]], "str | None"]


class Replacement:
    """What :func:`replace` gives.

    Attributes:
        replaced: how often the kernel was put into a graph.
        windows: how often it was put into a window of Adaptive Eager.
        refused: why matches were left as they were, one text each.
    """

    def __init__(self, pattern: Callable[..., Any], kernel: Callable[..., Any], example_inputs: Any, rtol: Any, atol: Any) -> None:
        self.pattern, self.kernel, self.tolerance = pattern, kernel, {"rtol": rtol, "atol": atol}
        self._kinds = None if example_inputs is None else [(tuple(t.shape), t.dtype) for t in example_inputs]
        self._arguments = _number_of_tensors(pattern) if example_inputs is None else len(example_inputs)
        self.name = f"{getattr(pattern, '__name__', 'pattern')}#{next(_numbers)}"
        self.replaced = self.windows = 0
        self.refused: list[str] = []
        self._checked: set[Any] = set()
        self._skeletons: dict[Any, list[GraphModule]] = {}
        _replacements[self.name] = self
        self._stop = rewrites.add(self._rewrite), windows.add(self)

    def remove(self) -> None:
        """Graphs that are compiled from now on are left alone, and windows that run."""
        for stop in self._stop:
            stop()

    def __repr__(self) -> str:
        return f"<nki replacement of {self.name}, in graphs {self.replaced} times, in windows {self.windows} times>"

    # Running.

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The kernel's results, compared with the pattern's the first time that these shapes and dtypes come."""
        results = listed(self.kernel(*inputs))
        key = tuple((tuple(t.shape), t.dtype, t.device.type) for t in inputs)
        if key not in self._checked:
            self.compare(results, listed(self.pattern(*inputs)), inputs)
            self._checked.add(key)
        return results

    def compare(self, found: list[torch.Tensor], wanted: list[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Raises a RuntimeError when the results are not the pattern's."""
        shapes = ", ".join(f"{t.dtype} {list(t.shape)}" for t in inputs)
        try:
            torch.testing.assert_close(found, wanted, **self.tolerance)
        except AssertionError as error:
            raise RuntimeError(
                f"nki.replace: the kernel does not compute what {self.name} computes, for arguments {shapes}. {error}\nMend the kernel, "
                "pass rtol= and atol= that it can keep, or call remove() on what nki.replace() gave and torch.compiler.reset()"
            ) from None

    # Matching.

    def _rewrite(self, gm: GraphModule) -> None:
        for match in self.matches(gm):
            self._put(gm, match)
        gm.graph.lint()
        gm.recompile()

    def matches(self, gm: GraphModule, form: Form | None = None, refusal: Refusal | None = None) -> Iterator[InternalMatch]:
        """Where the kernel can stand in ``gm``, later places first: what takes the place of an earlier one may be their argument.

        Args:
            form: what makes traced patterns comparable with ``gm``; None when they are.
            refusal: tells why else it cannot be.
        """
        for skeleton in self._patterns(gm, form):
            for match in reversed(SubgraphMatcher(skeleton.graph, ignore_literals=True).match(gm.graph)):
                why = self._refusal(match, gm, form, refusal)
                if why is None:
                    yield match
                elif why not in self.refused:
                    self.refused.append(why)

    def _patterns(self, gm: GraphModule, form: Form | None) -> Iterator[GraphModule]:
        """The pattern's operators, which depend on ranks and dtypes: of the examples, or of all that occur in ``gm``."""
        known: set[str] = set()
        for inputs in self._examples(gm):
            key = (form, *((t.dim(), t.dtype) for t in inputs))
            if key not in self._skeletons:
                self._skeletons[key] = list(_traced(self.pattern, inputs, form))
            for skeleton in self._skeletons[key]:
                if skeleton.code not in known:
                    known.add(skeleton.code)
                    yield skeleton

    def _examples(self, gm: GraphModule) -> Iterator[list[torch.Tensor]]:
        if self._kinds is not None:
            yield [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self._kinds]
            return
        found = [value for node in gm.graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor)]
        ranks = [rank for rank in _RANKS if any(value.dim() == rank for value in found)]
        dtypes = dict.fromkeys(value.dtype for value in found if value.dtype.is_floating_point)
        for dtype in dtypes:
            for shape in itertools.product(ranks, repeat=self._arguments):
                yield [torch.empty((8,) * rank, dtype=dtype, device="meta") for rank in shape]

    def _refusal(self, match: InternalMatch, gm: GraphModule, form: Form | None, other: Refusal | None) -> str | None:
        """Why the kernel cannot stand for a match; None when it can."""
        # An argument that the graph has as a number is that number here.
        inputs = arguments_of(match, form)
        if any(not isinstance(value, torch.Tensor) or value.device.type != "neuron" for value in inputs):
            return "an argument is no tensor on neuron"
        exact = next(_traced(self.pattern, inputs, form), None)
        again = SubgraphMatcher(exact.graph).match(gm.graph) if exact is not None else []
        if not any(one.returning_nodes == match.returning_nodes and one.placeholder_nodes == match.placeholder_nodes for one in again):
            return "the operators are the pattern's, but not their numbers or dtypes"
        wanted = [node.meta["val"] for node in match.returning_nodes]
        if any(not value.is_contiguous() for value in wanted):
            return "a result is not contiguous"
        try:
            with _fake_mode_of(inputs):
                found = listed(self.kernel(*inputs))
        except Exception as error:  # whatever the kernel says of arguments that it is not made for
            return f"the kernel refuses the arguments: {type(error).__name__}: {error}"
        if [(t.shape, t.dtype) for t in found] != [(t.shape, t.dtype) for t in wanted]:
            return "the kernel's results have other shapes or dtypes than the pattern's"
        return None if other is None else other(match, inputs, self.kernel, self.pattern)

    def _put(self, gm: GraphModule, match: InternalMatch) -> None:
        last = max(match.returning_nodes, key=list(gm.graph.nodes).index)
        with gm.graph.inserting_after(last):
            call = gm.graph.call_function(torch.ops.nki.replacement.default, (self.name, list(match.placeholder_nodes)))
        call.meta["val"] = [node.meta["val"] for node in match.returning_nodes]
        for index, node in reversed(list(enumerate(match.returning_nodes))):
            with gm.graph.inserting_after(call):
                item = gm.graph.call_function(operator.getitem, (call, index))
            item.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(item)
        inside = {node for pattern, node in match.nodes_map.items() if pattern.op == "call_function"}
        for node in reversed(list(gm.graph.nodes)):
            if node in inside and not node.users:
                gm.graph.erase_node(node)
        self.replaced += 1


def _number_of_tensors(pattern: Callable[..., Any]) -> int:
    """How many arguments a pattern needs."""
    try:
        parameters = inspect.signature(getattr(pattern, "forward", pattern)).parameters.values()  # a module's is behind *args
    except ValueError:  # one of PyTorch's built-in functions
        parameters = None
    if parameters is None or any(p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY) for p in parameters if p.default is p.empty):
        raise TypeError(
            f"nki.replace: {pattern!r} does not say how many tensors it takes. Pass example_inputs=, or a Python function, as lambda x: ..."
        )
    return sum(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)


def _fake_mode_of(inputs: Sequence[torch.Tensor]) -> Any:
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(inputs)
    assert mode is not None
    return mode


def _traced(pattern: Callable[..., Any], inputs: Sequence[torch.Tensor], form: Form | None) -> Iterator[GraphModule]:
    """The ATen graph of the pattern in ``form``, without what nothing needs; nothing when it does not run on such tensors."""
    try:
        with torch.no_grad():
            gm = make_fx(lambda *tensors: pattern(*tensors))(*inputs)  # of a function with defaults it would trace these, too
    except Exception:  # a pattern for matrices, tried on vectors
        return
    gm.graph.eliminate_dead_code()
    formed = gm if form is None else form(gm, inputs)
    if formed is None:
        return
    gm = formed
    if any(node.op == "call_function" for node in gm.graph.nodes):
        yield gm


@torch.library.custom_op("nki::replacement", mutates_args=(), schema="(str replacement, Tensor[] inputs) -> Tensor[]")
def _replacement(replacement: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return _replacements[replacement].run(inputs)


@_replacement.register_fake
def _(replacement: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return listed(_replacements[replacement].kernel(*inputs))


def replace(
    pattern: Callable[..., Any],
    kernel: Callable[..., Any],
    *,
    example_inputs: Sequence[torch.Tensor] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Replacement:
    """Puts ``kernel`` where graphs that ``torch.compile`` compiles from now on do what ``pattern`` does, on ``neuron`` tensors.

    The results are compared with the pattern's the first time that a shape and dtype comes. A match stays as it is when something else
    needs one of its inner values (a backward pass, often: see ``Replacement.refused`` for other reasons), or when the kernel refuses the
    shapes.

    Args:
        pattern: a PyTorch function or module of tensors; its other numbers, and its parameters with a default, are part of the pattern.
        kernel: a kernel, a custom op or a function with the same parameters, that writes to none of them.
        example_inputs: tensors of the ranks and dtypes to look for; by default, all combinations that occur in a graph are tried.
        rtol, atol: for the comparison; by default those of ``torch.testing.assert_close`` for the dtype.
    """
    if (rtol is None) != (atol is None):
        raise ValueError("nki.replace: give both rtol= and atol=, or none")
    return Replacement(pattern, kernel, example_inputs, rtol, atol)


__all__ = ["Replacement", "replace"]

"""What each operator makes of padded arguments: a table ``overload packet -> rule``.

A rule gets the Padder, the old node and its arguments by name; it makes the new node and says how its result is laid out, or raises
Refused.
Whatever has no row is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.layout import Dim, Layout, Refused, free_symbols, normal, product, regroup, symbols_of
from torch_neuronx.compile.padding.padder import Bound, Padder, aten, number_text

Rule = Callable[[Padder, Node, Bound], tuple[Node, Any]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def find(op: torch._ops.OpOverload) -> Rule:
    """The rule of ``op``. Refused: there is none."""
    found = RULES.get(op._schema.name.removeprefix("aten::"))
    if found is None and torch.Tag.pointwise in op.tags:
        found = pointwise
    if found is None:
        raise Refused(f"{op}: nothing is known about it on padded sizes")
    return found


def shape(node: Node) -> torch.Size:
    return node.meta["val"].shape


def dtype(node: Node) -> torch.dtype:
    return node.meta["val"].dtype


def wrap(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def zero(node: Node) -> Any:
    return False if dtype(node) == torch.bool else 0


def lowest(node: Node) -> Any:
    kind = dtype(node)
    return False if kind == torch.bool else -float("inf") if kind.is_floating_point else torch.iinfo(kind).min


def highest(node: Node) -> Any:
    kind = dtype(node)
    return True if kind == torch.bool else float("inf") if kind.is_floating_point else torch.iinfo(kind).max


def tensors_of(p: Padder, node: Node) -> list[Node]:
    return [source for source in node.all_input_nodes if isinstance(p.layouts.get(source), tuple)]


def single(p: Padder, node: Node, dim: int, what: str) -> None:
    """Positions along a padded dimension are the real ones only where it is not several rows."""
    if len(p.layout(node)[dim]) > 1 and p.is_padded(p.layout(node)[dim]):
        raise Refused(f"{what} along rows of padded length, {product(p.layout(node)[dim])}", symbols_of([p.layout(node)[dim]]) & p.bucketed)


def exact(p: Padder, node: Node, dim: int, what: str) -> None:
    if p.is_padded(p.layout(node)[dim]):
        raise Refused(f"{what} along dimension {dim}, which would be padded", symbols_of([p.layout(node)[dim]]) & p.bucketed)


# ---- Elementwise -----------------------------------------------------------------------------------------------------------

_DIVISIONS = ("div", "floor_divide", "remainder", "fmod", "gcd", "lcm", "true_divide")


def broadcast(p: Padder, nodes: Sequence[Node]) -> Layout:
    layouts = [p.layout(node) for node in nodes]
    result: list[Dim] = []
    for i in range(max(map(len, layouts), default=0)):
        found: Dim = ()
        for layout in layouts:
            dim = layout[-1 - i] if i < len(layout) else ()
            if not dim or dim == found:
                continue
            if found:
                raise p.refuse(f"its operands are laid out differently, {product(found)} and {product(dim)}", *nodes)
            found = dim
        result.append(found)
    return tuple(reversed(result))


@rule("clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh", "lift_fresh_copy", "where", "masked_fill", "copy")
def pointwise(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    op, new = node.target, dict(args)
    nodes = tensors_of(p, node)
    for name, value in args.items():
        if isinstance(value, Node) and value not in p.layouts and free_symbols(value.meta["val"]) & p.bucketed:
            # A size that is used as a number has its real value.
            packet = op.overloadpacket  # type: ignore[union-attr]
            if name != "other" or "Tensor" not in packet.overloads():
                raise p.refuse(f"a size is its argument {name}", *nodes)
            op = packet.Tensor_mode if "rounding_mode" in args else packet.Tensor
            new[name] = _number(p, node, value)
        elif (
            name in ("other", "divisor")
            and isinstance(value, Node)
            and value in p.layouts
            and not dtype(value).is_floating_point
            and op._schema.name.removeprefix("aten::") in _DIVISIONS  # type: ignore[union-attr]
        ):
            new[name] = p.fill(value, 1)  # an integer division by zero is an error
    return p.emit(op, new), broadcast(p, nodes)


def _number(p: Padder, node: Node, value: Node) -> Any:
    """The real value of a size, or of what was computed from sizes, as a tensor that leaves the dtype of the result as it is."""
    if isinstance(value.meta["val"], torch.SymInt):
        return p.number(number_text(value))
    result = node.meta["val"]
    if p.made[value] not in p.floats or result.dtype == torch.float64 or (result.dim() == 0 and result.dtype != torch.float32):
        raise p.refuse("a number computed from sizes is its operand", *tensors_of(p, node))
    return p.made[value]


@rule("zeros_like", "ones_like", "full_like", "empty_like")
def like(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    return p.emit(node.target, args), p.layout(args["self"])


@rule("full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def filled(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    value = args.get("fill_value")
    if isinstance(value, Node) and free_symbols(value.meta["val"]) & p.bucketed:
        raise Refused(f"{node.target}: a size is the number that it fills with", free_symbols(value.meta["val"]))
    return p.emit(node.target, args), p.order.layout(shape(node), p.bucketed)


@rule("arange")
def arange(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = p.order.layout(shape(node), p.bucketed)
    for name in ("start", "step"):
        if isinstance(args.get(name), Node):
            raise Refused(f"{node.target}: a size is its argument {name}", free_symbols(args[name].meta["val"]) & p.bucketed)
    if len(layout[0]) > 1:
        raise Refused(f"{node.target}: it counts rows of padded length", p.bucketed & {str(factor) for factor in layout[0]})
    return p.emit(node.target, args), layout


@rule("tril", "triu")
def triangle(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    rank = len(p.layout(args["self"]))
    for dim in (rank - 2, rank - 1):
        single(p, args["self"], dim, "it counts")
    return p.emit(node.target, args), p.layout(args["self"])


# ---- Views and what moves elements -----------------------------------------------------------------------------------------


@rule("view", "_unsafe_view", "reshape", "_reshape_copy", "view_copy", "unsqueeze", "squeeze")
def view(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    op = aten.reshape.default if node.target in (aten.view.default, aten._unsafe_view.default) else node.target
    bound = {"self": args["self"], "shape": args["size"]} if op is aten.reshape.default and "size" in args else args
    layout = regroup(p.layout(args["self"]), shape(node), p.bucketed)
    if node.target is aten.view.dtype:
        raise p.refuse("it changes the dtype of memory", args["self"])
    new = p.emit(op, bound)
    kept = p.filled.get(p.made[args["self"]], {})
    if kept and len(set(kept.values())) == 1 and len(kept) == len(p.dims(args["self"])):
        p.filled[new] = dict.fromkeys((i for i, dim in enumerate(layout) if p.is_padded(dim)), next(iter(kept.values())))
    return new, layout


@rule("permute", "transpose", "t", "numpy_T", "mT")
def permute(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, rank = p.layout(args["self"]), len(p.layout(args["self"]))
    if "dims" in args:
        order = [wrap(dim, rank) for dim in args["dims"]]
    else:
        a, b = (wrap(args.get("dim0", -1), rank), wrap(args.get("dim1", -2), rank)) if rank > 1 else (0, 0)
        order = list(range(rank))
        if rank:
            order[a], order[b] = order[b], order[a]
    new, kept = p.emit(node.target, args), p.filled.get(p.made[args["self"]], {})
    p.filled[new] = {place: kept[dim] for place, dim in enumerate(order) if dim in kept}
    return new, tuple(layout[dim] for dim in order)


@rule("expand")
def expand(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    old, sizes = p.layout(args["self"]), shape(node)
    added = len(sizes) - len(old)
    layout = list(p.order.layout(sizes, p.bucketed))
    for i, dim in enumerate(old):
        if dim:
            layout[added + i] = dim
    return p.emit(node.target, args), tuple(layout)


@rule("select")
def select(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, index = args["self"], args["index"]
    layout = p.layout(source)
    dim = wrap(args["dim"], len(layout))
    rest = layout[:dim] + layout[dim + 1 :]
    if not p.is_padded(layout[dim]):
        return p.emit(node.target, args), rest
    single(p, source, dim, "it counts")
    if not isinstance(index, int):
        raise p.refuse("a size is its argument index", source)
    if index >= 0:
        return p.emit(node.target, args), rest
    at = p.call(aten.add.Tensor, p.call(aten.full.default, [1], index, dtype=torch.int64, device=p.device), p.number(product(layout[dim])))
    return p.call(aten.squeeze.dim, p.call(aten.index_select.default, p.made[source], dim, at), dim), rest


@rule("slice")
def slice_(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, sizes = list(p.layout(args["self"])), shape(node)
    dim = wrap(args["dim"], len(layout))
    start, old = args["start"] or 0, shape(args["self"])[dim]
    whole = str(old) == str(sizes[dim])
    if whole and isinstance(start, int) and start <= 0 and args["step"] == 1:
        new = p.made[args["self"]]  # all of it, whatever the end is called
        return p.call(aten.alias.default, new), tuple(layout)
    touched = free_symbols(sizes[dim]) & p.bucketed
    if (not isinstance(start, int) or start < 0 or args["step"] != 1) and (touched or p.is_padded(layout[dim])):
        raise p.refuse("it takes a part that depends on a padded size", args["self"])
    if touched and p.is_padded(layout[dim]):
        raise p.refuse("it takes a part of a padded dimension", args["self"])
    if touched:
        layout[dim] = _first_of(p, node, old, sizes[dim], start)
    elif p.is_padded(layout[dim]):
        single(p, args["self"], dim, "it counts")
        if isinstance(args["end"], Node) or args["end"] is None or args["end"] < 0:
            raise p.refuse("it takes a part of a padded dimension that depends on its end", args["self"])
        layout[dim] = p.order.dim(sizes[dim], p.bucketed)
    else:
        layout[dim] = p.order.dim(sizes[dim], p.bucketed)
    return p.emit(node.target, args), tuple(layout)


def _first_of(p: Padder, node: Node, whole: Any, part: Any, start: Any) -> Dim:
    """The first ``part`` elements of a dimension that is not padded: the bucket must not be larger than ``whole``."""
    dim = p.order.dim(part, p.bucketed)
    if len(dim) != 1 or start != 0 or not isinstance(whole, int):
        raise Refused(f"{node.target}: it takes a part whose size is {part}", free_symbols(part) & p.bucketed)
    name = str(dim[0])
    p.limits[name] = min(whole, p.limits.get(name, whole))
    return dim


@rule("slice_backward")
def slice_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, sizes = args["grad_output"], shape(node)
    layout = list(p.layout(grad))
    dim = wrap(args["dim"], len(layout))
    if str(shape(grad)[dim]) == str(sizes[dim]):
        return p.emit(aten.alias.default, {"self": grad}), tuple(layout)
    if (args["step"] != 1 or args["start"] != 0) and (p.is_padded(layout[dim]) or free_symbols(sizes[dim]) & p.bucketed):
        raise p.refuse("it is the gradient of a part that depends on a padded size", grad)
    if p.is_padded(layout[dim]):
        if _first_of(p, node, sizes[dim], shape(grad)[dim], args["start"]) != layout[dim]:
            raise p.refuse("it is the gradient of a part that is laid out differently", grad)
        new = p.fill(grad, zero(grad), [dim])
        layout[dim] = p.order.dim(sizes[dim], p.bucketed)
        return p.emit(node.target, args | {"grad_output": new}), tuple(layout)
    layout[dim] = p.order.dim(sizes[dim], p.bucketed)
    if len(layout[dim]) > 1:
        raise p.refuse("it is the gradient of a part of rows of padded length", grad)
    return p.emit(node.target, args), tuple(layout)


@rule("select_backward")
def select_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, sizes = list(p.layout(args["grad_output"])), shape(node)
    dim = wrap(args["dim"], len(sizes))
    layout.insert(dim, p.order.dim(sizes[dim], p.bucketed))
    if p.is_padded(layout[dim]) and (len(layout[dim]) > 1 or not isinstance(args["index"], int) or args["index"] < 0):
        raise p.refuse("it counts from the end of a padded dimension", args["grad_output"])
    return p.emit(node.target, args), tuple(layout)


@rule("cat", "stack")
def join(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    nodes = list(args["tensors"])
    stacks = "stack" in str(node.target)
    rank = len(shape(node))
    dim = wrap(args["dim"], rank)
    layouts = [list(p.layout(one)) for one in nodes]
    for one, layout in zip(nodes, layouts, strict=True):
        if not stacks:
            exact(p, one, dim, "it joins")
            layout[dim] = p.order.dim(shape(node)[dim], p.bucketed)
        else:
            layout.insert(dim, normal([len(nodes)]))
    if any(layout != layouts[0] for layout in layouts):
        raise p.refuse("its operands are laid out differently", *nodes)
    return p.emit(node.target, args), tuple(layouts[0])


@rule("split", "split_with_sizes", "unbind", "chunk")
def split(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = list(p.layout(args["self"]))
    dim = wrap(args["dim"], len(layout))
    exact(p, args["self"], dim, "it splits")
    results = []
    for one in node.meta["val"]:
        part = list(layout)
        if len(one.shape) < len(layout):
            del part[dim]
        else:
            part[dim] = p.order.dim(one.shape[dim], p.bucketed)
        results.append(tuple(part))
    return p.emit(node.target, args), results


# ---- Rows: independent along all dimensions but those that are named ----------------------------------------------------------

_CAUSAL = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@rule("sort", "topk", "kthvalue", "argsort", "median", "mode", "flip", "roll", "glu", *_CAUSAL)
def rows(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, causal = args["self"], node.target._schema.name.removeprefix("aten::") in _CAUSAL  # type: ignore[union-attr]
    layout = p.layout(source)
    named = args["dims"] if "dims" in args else args.get("dim", None)
    if named is None or named == []:
        raise p.refuse("it works on all elements", source)
    dims = [wrap(dim, len(layout)) for dim in (named if isinstance(named, (list, tuple)) else [named])]
    for dim in dims:
        if not causal:
            exact(p, source, dim, "it works")
        else:
            single(p, source, dim, "it adds up")
    values = node.meta["val"]
    results = []
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if len(value.shape) < len(layout):
            results.append(tuple(dim for i, dim in enumerate(layout) if i not in dims))
        else:
            changed = [i for i in dims if not p.is_padded(layout[i])]
            results.append(tuple(p.order.dim(value.shape[i], p.bucketed) if i in changed else dim for i, dim in enumerate(layout)))
    return p.emit(node.target, args), results if isinstance(values, (list, tuple)) else results[0]


@rule("_softmax", "_log_softmax")
def softmax(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source = args["self"]
    dim = wrap(args["dim"], len(p.layout(source)))
    return p.emit(node.target, args | {"self": p.fill(source, lowest(source), [dim])}), p.layout(source)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, output = args["grad_output"], args["output"]
    layout = broadcast(p, [grad, output])
    dims = [wrap(args["dim"], len(layout))]
    return p.emit(node.target, args | {"grad_output": p.fill(grad, 0, dims), "output": p.fill(output, 0, dims)}), layout


def _normalised(p: Padder, source: Node, count: int) -> tuple[Layout, Layout]:
    """Layouts of a tensor and of the statistics of its last ``count`` dimensions."""
    layout = p.layout(source)
    for dim in range(len(layout) - count, len(layout)):
        exact(p, source, dim, "it normalises")
    return layout, layout[: len(layout) - count] + ((),) * count


@rule("native_layer_norm", "_fused_rms_norm")
def layer_norm(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, statistics = _normalised(p, args["input"], len(args["normalized_shape"]))
    return p.emit(node.target, args), [layout] + [statistics] * (len(node.meta["val"]) - 1)


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source = args["input"]
    layout, _ = _normalised(p, source, len(args["normalized_shape"]))
    # Gradients of weight and bias are sums over rows.
    clean = {name: p.fill(value, 0) for name, value in args.items() if isinstance(value, Node) and name not in ("weight", "bias")}
    parameters = [None if one is None else p.order.layout(one.shape, p.bucketed) for one in node.meta["val"][1:]]
    return p.emit(node.target, args | clean), [layout if node.meta["val"][0] is not None else None, *parameters]


# ---- Sums and their like ---------------------------------------------------------------------------------------------------

# What changes nothing where it stands in the padding.
_NEUTRAL: dict[str, Callable[[Node], Any]] = {
    "sum": zero,
    "nansum": zero,
    "prod": lambda node: True if dtype(node) == torch.bool else 1,
    "any": zero,
    "all": lambda node: True if dtype(node) == torch.bool else 1,
    "amax": lowest,
    "amin": highest,
    "max": lowest,
    "min": highest,
    "argmax": lowest,
    "argmin": highest,
    "logsumexp": lowest,
    "linalg_vector_norm": zero,
    "mean": zero,
}


@rule(*_NEUTRAL)
def reduction(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, name = args["self"], node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
    if "other" in args:  # max and min of two tensors
        return pointwise(p, node, args)
    layout = p.layout(source)
    named = args.get("dim")
    dims = list(range(len(layout))) if named is None or named == [] else named if isinstance(named, (list, tuple)) else [named]
    dims = sorted({wrap(dim, len(layout)) for dim in dims})
    padded = [dim for dim in dims if p.is_padded(layout[dim])]
    values = node.meta["val"]
    if name in ("argmax", "argmin") or isinstance(values, (list, tuple)):
        if padded and named is None and len(layout) > 1:
            raise p.refuse("it gives a position among all elements", source)
        for dim in padded:
            single(p, source, dim, "it gives a position")
    if name == "linalg_vector_norm" and padded and not args["ord"] > 0:
        raise p.refuse(f"of order {args['ord']}, it has no neutral padding", source)
    if name in ("max", "min") and not isinstance(values, (list, tuple)):
        node_args: Bound = {"self": p.fill(source, _NEUTRAL[name](source), padded)}
    else:
        node_args = args | {"self": p.fill(source, _NEUTRAL[name](source), padded)}
    kept = tuple(() if i in dims else dim for i, dim in enumerate(layout))
    one = values[0] if isinstance(values, (list, tuple)) else values
    result = kept if len(one.shape) == len(layout) else tuple(dim for i, dim in enumerate(layout) if i not in dims)
    if name == "mean" and padded:
        new = p.call(aten.sum.dim_IntList, node_args["self"], dims, len(one.shape) == len(layout), dtype=args.get("dtype"))
        new = p.call(aten.div.Tensor, new, p.number(product(factor for dim in dims for factor in layout[dim])))
        return new, result
    return p.emit(node.target, node_args), [result] * len(values) if isinstance(values, (list, tuple)) else result


@rule("var", "std", "var_mean", "std_mean")
def variance(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source = args["self"]
    layout = p.layout(source)
    dims = {wrap(dim, len(layout)) for dim in (args.get("dim") or range(len(layout)))}
    for dim in sorted(dims):
        exact(p, source, dim, "it works")
    result = tuple(() if i in dims else dim for i, dim in enumerate(layout))
    result = result if args.get("keepdim") else tuple(dim for i, dim in enumerate(layout) if i not in dims)
    values = node.meta["val"]
    return p.emit(node.target, args), [result] * len(values) if isinstance(values, (list, tuple)) else result


# ---- Matrix products -------------------------------------------------------------------------------------------------------


@rule("mm", "bmm", "mv", "dot")
def product_of(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    a, b = args["self"], next(args[name] for name in ("mat2", "vec", "tensor") if name in args)
    new, layout = _contracted(p, a, b)
    return p.emit(node.target, dict(zip(args, new, strict=True))), layout


@rule("addmm", "baddbmm", "addmv")
def sum_and_product(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    names = [name for name in args if name not in ("self", "beta", "alpha")]
    new, layout = _contracted(p, args[names[0]], args[names[1]])
    for mine, whole in zip(reversed(p.layout(args["self"])), reversed(layout), strict=False):
        if mine and mine != whole:
            raise p.refuse("its operands are laid out differently", *(args[name] for name in ("self", *names)))
    return p.emit(node.target, args | dict(zip(names, new, strict=True))), layout


def _contracted(p: Padder, a: Node, b: Node) -> tuple[tuple[Node, Node], Layout]:
    left, right = p.layout(a), p.layout(b)
    inner = len(right) - (2 if len(right) > 1 else 1)
    if left[-1] != right[inner] or (len(left) == 3 and left[0] != right[0]):
        raise p.refuse(f"its operands are laid out differently, {product(left[-1])} and {product(right[inner])}", a, b)
    new = p.made[a], p.made[b]
    if p.is_padded(left[-1]):  # both, for 0 * inf is no 0
        new = p.fill(a, 0, [len(left) - 1]), p.fill(b, 0, [inner])
    return new, left[:-1] + right[inner + 1 :]


@rule("_scaled_dot_product_flash_attention_for_cpu")
def attention(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    query, value = p.layout(args["query"]), p.layout(args["value"])
    _check_heads(p, args)
    clean = {"key": p.fill(args["key"], 0, [2]), "value": p.fill(args["value"], 0, [2]), "attn_mask": _key_mask(p, args)}
    return p.emit(node.target, args | clean), [query[:3] + value[3:], query[:3]]


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    _check_heads(p, args)
    # A row of the padding has no gradient, and finite everything else: then it adds nothing to the gradients of keys and values.
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    clean: Bound = {name: p.fill(args[name], 0, [2]) for name in names}
    layouts = [p.layout(args[name]) for name in ("query", "key", "value")]
    return p.emit(node.target, args | clean | {"attn_mask": _key_mask(p, args)}), layouts


def _check_heads(p: Padder, args: Bound) -> None:
    nodes = [args[name] for name in ("query", "key", "value")]
    for one in nodes:
        exact(p, one, 3, "it adds up products")
        single(p, one, 2, "it attends")
    layouts = [p.layout(one) for one in nodes]
    if any(layout[:2] != layouts[0][:2] for layout in layouts) or layouts[1][2] != layouts[2][2]:
        raise p.refuse("its operands are laid out differently", *nodes)
    if args["is_causal"] and layouts[0][2] != layouts[1][2]:
        raise p.refuse("causal, of queries and keys of different lengths", *nodes)


def _key_mask(p: Padder, args: Bound) -> Any:
    """The mask that keeps queries from padded keys. Causal attention needs none: no query looks at what comes after it."""
    mask, query, key = args["attn_mask"], p.layout(args["query"]), p.layout(args["key"])
    if mask is not None:
        layout = p.layout(mask)
        if p.is_padded(key[2]) and layout[-1] != key[2] and not args["is_causal"]:
            raise p.refuse("its mask does not cover the keys one by one", mask, args["key"])
        # Its own padding is looked at by rows of the padding, which must not be NaN where the backward pass multiplies by zero.
        rank = len(layout)
        cleared = p.fill_new(p.made[mask], layout, 0 if dtype(mask) != torch.bool else True, [rank - 2] if rank > 1 else [])
        return p.fill_new(cleared, layout, lowest(mask), [rank - 1])
    if args["is_causal"] or not p.is_padded(key[2]):
        return None
    zeros = p.call(aten.full.default, [p.size(query[2]), p.size(key[2])], 0, dtype=dtype(args["query"]), device=p.device)
    return p.fill_new(zeros, (query[2], key[2]), -float("inf"), [1])


# ---- Rows that are looked up -------------------------------------------------------------------------------------------------


@rule("embedding")
def embedding(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    weight, indices = args["weight"], args["indices"]
    exact(p, weight, 0, "it looks up rows")
    return p.emit(node.target, args | {"indices": p.fill(indices, 0)}), p.layout(indices) + p.layout(weight)[1:]


@rule("embedding_dense_backward")
def embedding_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, indices = args["grad_output"], args["indices"]
    if args["scale_grad_by_freq"]:
        raise p.refuse("scale_grad_by_freq counts the indices", indices)
    new = args | {"grad_output": p.fill(grad, 0, range(len(p.layout(indices)))), "indices": p.fill(indices, 0)}
    return p.emit(node.target, new), p.order.layout(shape(node)[:1], p.bucketed) + p.layout(grad)[len(p.layout(indices)) :]


@rule("index_select")
def index_select(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = list(p.layout(args["self"]))
    dim = wrap(args["dim"], len(layout))
    single(p, args["self"], dim, "it looks up positions")
    (layout[dim],) = p.layout(args["index"]) or ((),)
    return p.emit(node.target, args | {"index": p.fill(args["index"], 0)}), tuple(layout)


@rule("index")
def index(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, indices = args["self"], list(args["indices"])
    layout = p.layout(source)
    given = [place for place, one in enumerate(indices) if one is not None]
    if len(given) != 1 or dtype(indices[given[0]]) == torch.bool:
        raise p.refuse("with more than one index", *tensors_of(p, node))
    (dim,) = given
    single(p, source, dim, "it looks up positions")
    if p.is_padded(layout[dim]):
        raise p.refuse("negative indices count from the end of a padded dimension", source)
    new = [one if one is None else p.fill(one, 0) for one in indices]
    return p.emit(node.target, args | {"indices": new}), layout[:dim] + p.layout(indices[dim]) + layout[dim + 1 :]


@rule("index_put")
def index_put(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, indices, values = args["self"], list(args["indices"]), args["values"]
    layout = p.layout(source)
    given = [place for place, one in enumerate(indices) if one is not None]
    if len(given) != 1 or dtype(indices[given[0]]) == torch.bool or not args["accumulate"]:
        raise p.refuse("it writes, with more than one index or without adding up", *tensors_of(p, node))
    (dim,) = given
    exact(p, source, dim, "it adds to rows")
    wanted = layout[:dim] + p.layout(indices[dim]) + layout[dim + 1 :]
    if p.layout(values) != wanted:
        raise p.refuse("its operands are laid out differently", *tensors_of(p, node))
    new = [one if one is None else p.fill(one, 0) for one in indices]
    over = range(dim, dim + len(p.layout(indices[dim])))
    return p.emit(node.target, args | {"indices": new, "values": p.fill(values, zero(values), over)}), layout


@rule("gather", "scatter_add")
def gather(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, positions = args["self"], args["index"]
    layout, other = p.layout(source), p.layout(positions)
    dim = wrap(args["dim"], max(len(layout), 1))
    exact(p, source, dim, "it looks up positions")
    if any(a != b for i, (a, b) in enumerate(zip(layout, other, strict=True)) if i != dim and (p.is_padded(a) or p.is_padded(b))):
        raise p.refuse("its operands are laid out differently", source, positions)
    new = args | {"index": p.fill(positions, 0)}
    if "src" not in args:
        return p.emit(node.target, new), other
    if p.layout(args["src"]) != other:
        raise p.refuse("its operands are laid out differently", source, positions)
    return p.emit(node.target, new | {"src": p.fill(args["src"], zero(args["src"]))}), layout


# ---- Losses ----------------------------------------------------------------------------------------------------------------


@rule("nll_loss_forward", "nll_loss_backward")
def nll_loss(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, target = args["self"], args["target"]
    layout = p.layout(source)
    exact(p, source, len(layout) - 1, "it looks up classes")
    if layout[:1] != p.layout(target):
        raise p.refuse("its operands are laid out differently", source, target)
    new = args | {"self": p.fill(source, 0), "target": p.fill(target, args["ignore_index"])}
    if "grad_output" in args:
        return p.emit(node.target, new), layout
    return p.emit(node.target, new), [layout[:1] if args["reduction"] == 0 else (), ()]


@rule("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss")
def loss(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    """Without reduction on padded sizes, then a sum or a mean of what is valid."""
    layout = broadcast(p, tensors_of(p, node))
    new = p.emit(node.target, args | {"reduction": 0})
    if args["reduction"] == 0:
        return new, layout
    padded = [i for i, dim in enumerate(layout) if p.is_padded(dim)]
    new = p.call(aten.sum.default, p.fill_new(new, layout, 0, padded))
    if args["reduction"] == 1:
        new = p.call(aten.div.Tensor, new, p.number(product(factor for dim in layout for factor in dim)))
    return new, ()


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward", "soft_margin_loss_backward")
def loss_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = broadcast(p, tensors_of(p, node))
    if args["reduction"] != 1:
        return p.emit(node.target, args), layout
    new = p.emit(node.target, args | {"reduction": 2})  # that of the sum
    return p.call(aten.div.Tensor, new, p.number(product(factor for dim in layout for factor in dim))), layout


# ---- Batches: only the first dimension is padded, and each of its elements is on its own ----------------------------------------


@rule(
    "convolution", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool1d", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_nearest1d", "native_group_norm", "_native_batch_norm_legit_no_training", "pixel_shuffle", "im2col", "col2im",
)  # fmt: skip
def batches(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    first = _batch(p, tensors_of(p, node))
    values = node.meta["val"]
    results = [None if one is None else _batch_layout(p, one, first) for one in (values if isinstance(values, (list, tuple)) else [values])]
    return p.emit(node.target, args), results if isinstance(values, (list, tuple)) else results[0]


@rule("convolution_backward")
def convolution_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, source = args["grad_output"], args["input"]
    exact(p, args["weight"], 0, "it has filters")
    first = _batch(p, [grad, source])
    clean = {"grad_output": p.fill(grad, 0), "input": p.fill(source, 0)}  # gradients of weights are sums over the batch
    results = [None if one is None else p.order.layout(one.shape, p.bucketed) for one in node.meta["val"]]
    if results[0] is not None:
        results[0] = _batch_layout(p, node.meta["val"][0], first)
    return p.emit(node.target, args | clean), results


def _batch(p: Padder, nodes: list[Node]) -> Dim:
    """The first dimension of those that are padded."""
    padded = [one for one in nodes if p.dims(one)]
    found = {p.layout(one)[0] for one in padded}
    for one in padded:
        for dim in p.dims(one):
            if dim:
                exact(p, one, dim, "it works")
    if len(found) > 1:
        raise p.refuse("its operands are laid out differently", *padded)
    return next(iter(found), ())


def _batch_layout(p: Padder, value: torch.Tensor, first: Dim) -> Layout:
    layout = list(p.order.layout(value.shape, p.bucketed))
    if layout and first and (layout[0] == first or free_symbols(value.shape[0])):
        layout[0] = first
    return tuple(layout)

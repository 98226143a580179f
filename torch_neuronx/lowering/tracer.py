"""Runs PyTorch code with JAX expressions in place of values.

Note [Traced tensors]
A :class:`Traced` tensor has three parts: a *meta tensor* that PyTorch itself moves through every operator, so that shapes, strides, dtypes
and aliasing are PyTorch's own; a *storage* that all its aliases share; and a *value*, the JAX array of its logical shape. A view gets its
value from its parent's by the table's function, so chains of views stay slices and transposes; a write changes the storage, and the other
aliases read their value from there again (views.py).

Note [How a call is lowered]
1. a row of the table, with the results checked against PyTorch's metadata;
2. an in-place or ``out=`` overload: its functional overload, then a write;
3. PyTorch's Python decomposition (decompositions.py says which);
4. the C++ kernel of a composite overload, whose inner calls come back here;
5. else :class:`~torch_neuronx.lowering.table.NotLowered` with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torch_neuronx.lowering import decompositions, views
from torch_neuronx.lowering.dtypes import to_jax, to_torch
from torch_neuronx.lowering.schema import functional_overload, written_arguments
from torch_neuronx.lowering.table import CallInfo, Lowering, NotLowered, OutMeta, table
from torch_neuronx.lowering.views import Geometry


class TracedStorage:
    """The memory behind Traced tensors: one dense array and how it lies, or flat."""

    def __init__(self, value: Any, geometry: Geometry, numel: int) -> None:
        self.value, self.geometry, self.numel = value, geometry, numel
        self.version = 0
        self.written = False

    def flat(self) -> Any:
        return views.flatten(self.value, self.geometry)

    def set(self, value: Any, geometry: Geometry) -> None:
        """Replaces everything (``geometry`` fills the storage) or writes a part."""
        if geometry == self.geometry:
            self.value = value
        elif geometry.memory_order() is not None and geometry.numel == self.numel:
            self.value, self.geometry = value, geometry
        else:
            self.value = views.write(self.flat(), geometry, value)
            self.geometry = views.contiguous((self.numel,))
        self.version += 1
        self.written = True

    def grow(self, numel: int) -> None:
        """Room for ``numel`` elements, as ``resize_`` makes it; the new ones are zero here, undefined in PyTorch."""
        if numel > self.numel:
            self.value, self.geometry, self.numel = jnp.pad(self.flat(), (0, numel - self.numel)), views.contiguous((numel,)), numel


class Traced(torch.Tensor):
    """See Note [Traced tensors]."""

    meta: torch.Tensor
    base: TracedStorage
    value: Any
    version: int
    constant: torch.Tensor | None
    host_scalar: bool

    @staticmethod
    def __new__(cls, meta: torch.Tensor, storage: TracedStorage, value: Any, constant: torch.Tensor | None = None) -> Traced:
        made = torch.Tensor._make_wrapper_subclass(
            cls, meta.size(), strides=meta.stride(), storage_offset=meta.storage_offset(), dtype=meta.dtype, device=torch.device("cpu")
        )
        made.meta, made.base, made.value, made.version = meta, storage, value, storage.version
        made.constant = constant
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        tracer = Tracer.current
        if tracer is None:
            raise RuntimeError("a tensor that was traced for Trainium is used after its trace has ended")
        return tracer.__torch_dispatch__(func, types, args, kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Traced({self.dtype}, {tuple(self.shape)})"

    @property
    def place(self) -> Geometry:
        return place_of(self.meta)

    def read(self) -> Any:
        """The value now, in logical shape."""
        if self.version != self.base.version:
            self.value = self._from_storage()
            self.version = self.base.version
        return self.value

    def _from_storage(self) -> Any:
        if self.base.geometry == self.place and self.base.value.dtype == to_jax(self.dtype):
            return resolved(self.base.value, self.meta)
        flat = reinterpret(self.base.flat(), to_jax(self.dtype))
        return resolved(views.read(flat, self.place), self.meta)

    def write(self, value: Any) -> None:
        """Gives all elements new values (logical shape, own dtype)."""
        stored, storage = resolved(value, self.meta), self.base
        own, theirs = to_jax(self.dtype), storage.value.dtype
        if own == theirs:
            storage.set(stored, self.place)
        else:
            flat = reinterpret(storage.flat(), own)
            whole = reinterpret(views.write(flat, self.place, stored), theirs)
            storage.set(whole, views.contiguous((storage.numel,)))
        self.value, self.version = value, storage.version
        self.constant = None


def resolved(value: Any, meta: torch.Tensor) -> Any:
    """Applies (or removes) the conj and neg bits of ``meta``."""
    value = jnp.conj(value) if meta.is_conj() else value
    return -value if meta.is_neg() else value


def reinterpret(flat: Any, dtype: Any) -> Any:
    """The bits of a one-dimensional array as another dtype."""
    if flat.dtype == dtype:
        return flat
    if flat.dtype == jnp.bool_:
        flat = flat.astype(jnp.uint8)
    if jnp.issubdtype(flat.dtype, jnp.complexfloating):
        flat = jnp.stack([flat.real, flat.imag], -1).reshape(-1)
        return reinterpret(flat, dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.float32 if dtype == jnp.complex64 else jnp.float64
        pairs = reinterpret(flat, part).reshape(-1, 2)
        return jax.lax.complex(pairs[:, 0], pairs[:, 1])
    if dtype == jnp.bool_:
        return reinterpret(flat, jnp.uint8) != 0
    wide, narrow = flat.dtype.itemsize, jnp.dtype(dtype).itemsize
    if wide < narrow:
        flat = flat.reshape(-1, narrow // wide)
    return jax.lax.bitcast_convert_type(flat, dtype).reshape(-1)


def place_of(meta: torch.Tensor) -> Geometry:
    return Geometry(tuple(meta.size()), tuple(meta.stride()), int(meta.storage_offset()))


def storage_numel(meta: torch.Tensor) -> int:
    return meta.untyped_storage().nbytes() // meta.element_size()


def storage_key(meta: torch.Tensor) -> int:
    return int(meta.untyped_storage()._cdata)


def to_array(tensor: torch.Tensor) -> Any:
    """A PyTorch tensor's values as a numpy array (of ml_dtypes where numpy has no such dtype)."""
    host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    dtype = to_jax(host.dtype)
    if host.dtype in (torch.bfloat16,) or "float8" in str(host.dtype):
        bits = {1: torch.uint8, 2: torch.int16}[host.element_size()]
        return host.view(bits).numpy().view(dtype)
    return host.numpy()


@contextlib.contextmanager
def _without_data(name: str) -> Iterator[None]:
    """C++ composites that look into a tensor (``tensor_split`` by a tensor) fail with c10's words about memory; NotLowered says why."""
    try:
        yield
    except RuntimeError as error:
        if "its data is not allocated yet" not in str(error):
            raise
        raise NotLowered(name, "its code reads the values of a tensor on the host, so the program ends here") from error


class Tracer(TorchDispatchMode):
    """Lowers every call made inside it, see Note [How a call is lowered]. Open it within a JAX trace."""

    supports_higher_order_operators = True
    current: Tracer | None = None

    def __init__(self, target: str = "portable", constants: bool = True) -> None:
        """``constants``: real tensors that are met become constants of the module; False: they are refused."""
        super().__init__()
        self.target, self.constants = target, constants
        self.table = table()
        self.storages: dict[int, TracedStorage] = {}  # by identity of the meta tensors' storages
        self.keep: list[torch.Tensor] = []  # meta tensors, so that the identities stay theirs
        self.lifted: dict[int, tuple[torch.Tensor, Traced]] = {}
        self.symbols: Any = None  # symbols.Symbols of a Program with symbolic sizes; its metas are fake tensors of this mode
        self.fake_mode: Any = None
        self.call_number: int | None = None
        self.replicas = 1  # ranks that run the module together, where it has collectives
        self.decomposing: set[Any] = set()
        self.calls: list[str] = []  # overloads that a row of the table lowered, in order

    @contextlib.contextmanager
    def tracing(self, every_call: bool = True) -> Iterator[Tracer]:
        """``every_call``: PyTorch calls made inside come here by themselves; else only :meth:`call` lowers."""
        before, Tracer.current = Tracer.current, self
        try:
            with self if every_call else contextlib.nullcontext(), _without_data("a composite operator"):
                yield self
        finally:
            Tracer.current = before

    # ---- making tensors ----

    def wrap(self, meta: torch.Tensor, value: Any, constant: torch.Tensor | None = None) -> Traced:
        """A Traced tensor of the metadata ``meta`` with the logical value ``value``."""
        key = storage_key(meta)
        storage = self.storages.get(key)
        if storage is None:
            place, numel = place_of(meta), storage_numel(meta)
            if place.memory_order() is not None and place.numel == numel:
                storage = TracedStorage(value, place, numel)
            else:
                storage = TracedStorage(jnp.zeros((numel,), value.dtype), views.contiguous((numel,)), numel)
                storage.value = views.write(storage.value, place, value)
            self.storages[key] = storage
            self.keep.append(meta)
        return Traced(meta, storage, value, constant)

    def lift(self, tensor: torch.Tensor) -> Traced:
        """A real tensor as a constant of the module."""
        known = self.lifted.get(id(tensor))
        if known is not None:
            return known[1]
        if not self.constants and tensor.dim():
            raise NotLowered("a captured tensor", "the function uses a tensor that is not among its arguments; pass it as an argument")
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            raise NotLowered("a tensor argument", f"the chip has no {kind} tensors")
        meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        dense = place_of(meta).memory_order() is not None or not tensor.numel()
        if not dense:
            meta = torch.empty(tensor.size(), dtype=tensor.dtype, device="meta")
        made = self.wrap(meta, jnp.asarray(to_array(tensor)), tensor.detach())
        self.lifted[id(tensor)] = (tensor, made)
        return made

    def fresh(self, value: Any) -> Traced:
        """A new contiguous tensor that holds a JAX array."""
        return self.wrap(torch.empty(value.shape, dtype=to_torch(value.dtype), device="meta"), value)

    # ---- calls ----

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        args, kwargs = tree_map(self._own, (args, kwargs))
        if not isinstance(func, torch._ops.OpOverload):
            return self.higher_order(func, args, kwargs)
        return self.call(func, args, kwargs)

    def _own(self, value: Any) -> Any:
        return self.lift(value) if isinstance(value, torch.Tensor) and not isinstance(value, Traced) else value

    def call(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One overload on Traced tensors."""
        if func is torch.ops.aten.view_as_real.default and args[0].meta.is_conj():
            args = (self.fresh(args[0].read()),)
        if func is torch.ops.aten.as_strided.default:
            return self._window(*args, **kwargs)
        row = self.table.get(func.name())
        if row is not None:
            return self._row(row, func, args, kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and args[0].constant is not None:
            return args[0].constant.item()
        if torch.Tag.inplace_view in func.tags:
            return self._changed_view(func, args, kwargs)
        if func._schema.is_mutable:
            functional = functional_overload(func)
            if functional is not None:
                return self._mutating(func, functional, args, kwargs)
        decomposition = decompositions.find(func)
        if decomposition is None:
            raise NotLowered(func.name(), decompositions.why_not(func))
        if func in self.decomposing:
            raise NotLowered(func.name(), "PyTorch's decomposition leads back to it, and no row of the lowering table covers it")
        self.decomposing.add(func)
        try:
            with self, _without_data(func.name()):
                result = decomposition(*args, **kwargs)
        finally:
            self.decomposing.discard(func)
        return self._aliased(func, args, result)

    def _window(self, x: Traced, *args: Any, **kwargs: Any) -> Traced:
        """``as_strided``: may show elements of the storage that its argument does not."""
        made = Traced(torch.as_strided(x.meta, *args, **kwargs), x.base, None)
        made.version = -1
        return made

    def _changed_view(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        """``squeeze_`` and its like: the argument itself shows its storage in another way."""
        x: Traced = args[0]
        x.meta = x.meta.view_as(x.meta)  # other Traced tensors may share the meta tensor
        rest, meta_kwargs = tree_map(self._meta, (args[1:], kwargs))
        func(x.meta, *rest, **meta_kwargs)
        if self.symbols is None:
            x.base.grow(x.meta.untyped_storage().nbytes() // x.base.value.dtype.itemsize)
        with torch.utils._mode_utils.no_dispatch():
            func(*args, **kwargs)
        x.version = -1
        return x

    def higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A higher-order operator (``cond``, ``scan``...) on Traced tensors and functions of them."""
        name = f"higher_order::{func.name() if callable(getattr(func, 'name', None)) else func}"
        row = self.table.get(name)
        if row is None:
            raise NotLowered(name, "no row of the table covers this higher-order operator")
        return row.function(self, *args, **kwargs)

    def _row(self, row: Lowering, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        meta_args, meta_kwargs = tree_map(self._meta, (args, kwargs))
        if self.fake_mode is None and _has_device(func):
            meta_kwargs["device"] = torch.device("meta")
        mutable = func._schema.is_mutable
        out = None if mutable else self._metadata(func, meta_args, meta_kwargs)
        values, kw_values = tree_map(self._read, (args, kwargs))
        self.calls.append(func.name())
        # Where an instruction comes from, for the compiler's errors: overload and number of the Program's call.
        with jax.named_scope(func.name() if self.call_number is None else f"{func.name()}#{self.call_number}"):
            if row.wants_call:
                result = row.function(CallInfo(meta_args, tree_map(self._described, out), self.target), *values, **kw_values)
            else:
                result = row.function(*values, **kw_values)
        if not mutable:
            return self._results(func, out, result)
        (written,) = written_arguments(func)  # such rows compute what their one written argument becomes
        position = [argument.name for argument in func._schema.arguments].index(written)
        self.assign(args[position], self.fresh(result), resize=False, name=func.name())
        return args[position]

    def _meta(self, value: Any) -> Any:
        """An argument as the kernels that only know metadata take it."""
        if isinstance(value, Traced):
            return value.meta
        if isinstance(value, torch.device):
            return torch.device("meta") if self.fake_mode is None else value
        if isinstance(value, jax.Array):  # a payload: only its type decides metadata
            return {"b": True, "i": 1, "f": 1.0, "c": 1j}[value.dtype.kind]
        return value

    def _metadata(self, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        """PyTorch's metadata of the results; None where it has no meta kernel. Bad arguments raise what PyTorch raises."""
        try:
            with self.fake_mode or contextlib.nullcontext():
                return func(*args, **kwargs)
        except NotImplementedError:
            return None
        except RuntimeError as error:
            if torch.Tag.dynamic_output_shape not in func.tags:
                raise
            raise NotLowered(func.name(), decompositions.why_not(func)) from error

    def _read(self, value: Any) -> Any:
        if isinstance(value, Traced):
            return value.read()
        return self.symbols.dim(value) if self.symbols is not None and isinstance(value, torch.SymInt) else value

    def _described(self, out: Any) -> Any:
        if not isinstance(out, torch.Tensor):
            return out
        return OutMeta(out.dtype, tuple(out.shape) if self.symbols is None else self.symbols.dims(out.shape))

    def _results(self, func: torch._ops.OpOverload, out: Any, result: Any) -> Any:
        """Wraps JAX arrays into tensors of PyTorch's metadata."""
        if isinstance(result, (list, tuple)):
            outs = list(out) if out is not None else [None] * len(result)
            if len(outs) != len(result):
                raise AssertionError(f"{func.name()}: lowered to {len(result)} results, PyTorch gives {len(outs)}")
            made = [self._results(func, meta, value) for meta, value in zip(outs, result, strict=True)]
            return made if isinstance(out, list) or (out is None and isinstance(result, list)) else tuple(made)
        if not hasattr(result, "dtype") or isinstance(result, torch.dtype):
            return result  # a host value, or None for an undefined tensor
        if out is None:
            return self.fresh(result)
        if not isinstance(out, torch.Tensor):
            raise AssertionError(f"{func.name()}: lowered to a tensor, PyTorch gives {type(out).__name__}")
        wanted = to_jax(out.dtype)
        if result.dtype != wanted or (self.symbols is None and tuple(result.shape) != tuple(out.shape)):
            found = f"{result.dtype}{list(result.shape)}"
            raise AssertionError(f"{func.name()}: lowered to {found}, PyTorch gives {wanted}{list(out.shape)}")
        return self.wrap(out, result)

    def _mutating(
        self, func: torch._ops.OpOverload, functional: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """In place and ``out=``: the functional overload, then a write of each result."""
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        accepted = {argument.name for argument in functional._schema.arguments}
        for argument in func._schema.arguments:  # a default that the functional overload lacks
            if argument.name not in given and argument.has_default_value() and argument.name in accepted:
                given[argument.name] = argument.default_value
        results = self.call(functional, *_arranged(functional, {name: value for name, value in given.items() if name in accepted}))
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        targets = tree_leaves([given[name] for name in written_arguments(func)])
        results = tree_leaves(results)
        returned = len(results) - len(targets)  # functional forms of ops that also return something put what they write last
        for target, result in zip(targets, results[returned:], strict=True):
            self.assign(target, result, resize=bool(func._schema.arguments[-1].is_out), name=func.name())
        written, fresh = iter([given[name] for name in written_arguments(func)]), iter(results[:returned])
        outputs = [next(written if _is_written(item) else fresh) for item in func._schema.returns]
        return tuple(outputs) if len(outputs) > 1 else outputs[0] if outputs else None

    def assign(self, target: Traced, result: Traced, resize: bool, name: str) -> None:
        """Writes ``result`` into ``target``: converted, broadcast, and for ``out=`` resized."""
        if target.shape != result.shape and resize:
            resize_traced(self, target, tuple(result.shape))
        value = convert(result.read(), to_jax(target.dtype))
        if tuple(value.shape) != tuple(target.shape):
            value = jnp.broadcast_to(value, tuple(target.shape))
        target.write(value)

    def _aliased(self, func: torch._ops.OpOverload, args: tuple[Any, ...], result: Any) -> Any:
        """A decomposition of an in-place overload may return a new tensor where PyTorch returns the argument."""
        returns = func._schema.returns
        if len(returns) == 1 and returns[0].alias_info is not None and returns[0].alias_info.is_write and isinstance(args[0], Traced):
            if result is not args[0] and isinstance(result, Traced):
                self.assign(args[0], result, resize=False, name=func.name())
            return args[0]
        return result


def _is_written(item: Any) -> bool:
    return bool(item.alias_info is not None and item.alias_info.is_write)


def convert(value: Any, dtype: Any) -> Any:
    """PyTorch's conversion between dtypes."""
    if value.dtype == dtype:
        return value
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        if dtype == jnp.bool_:
            return value != 0
        value = value.real
    if dtype == jnp.bool_:
        return value != 0
    if jnp.issubdtype(value.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize < 4:
        value = value.astype(jnp.int32)  # then wraps, as C does; XLA alone would saturate
    return value.astype(dtype)


def resize_traced(tracer: Tracer, target: Traced, shape: tuple[int, ...]) -> None:
    """``target`` becomes a fresh contiguous tensor of ``shape``, as ``out=`` tensors do."""
    meta = torch.empty(shape, dtype=target.dtype, device="meta")
    fresh = tracer.wrap(meta, jnp.zeros(shape, to_jax(target.dtype)))
    target.meta, target.base, target.value, target.version = fresh.meta, fresh.base, fresh.value, fresh.version
    with torch.utils._mode_utils.no_dispatch():
        target.resize_(shape)


_device_argument: dict[Any, bool] = {}


def _has_device(func: torch._ops.OpOverload) -> bool:
    """Whether the overload creates a tensor, on a device that an argument names."""
    known = _device_argument.get(func)
    if known is None:
        names = {argument.name for argument in func._schema.arguments}
        known = _device_argument[func] = {"device", "dtype", "layout"} <= names
    return known


def _arranged(func: torch._ops.OpOverload, given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Named arguments as (args, kwargs) of ``func``."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    by_position = True
    for argument in func._schema.arguments:
        if argument.name not in given:
            by_position = False
        elif argument.kwarg_only or not by_position:
            kwargs[argument.name] = given[argument.name]
        else:
            args.append(given[argument.name])
    return tuple(args), kwargs

"""PyTorch's autocast lists: each op, under autocast on a device, gives the dtype of its list and the values of explicit casts.

The lists are those of the accelerators. Device ``cpu`` has lists of its own; there only the explicit casts are run, to learn what it can.
"""

from typing import Any

import torch
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.testing._internal.autocast_test_lists import TestAutocast as RunsAutocast
from torch.testing._internal.common_utils import TestCase, parametrize
from torch.utils._pytree import tree_map_only

LOWER = object()  # the dtype of the autocast region
# list: (where its ops live, the dtype they run in)
LISTS: dict[str, tuple[Any, Any]] = {
    "torch_fp16": (torch, LOWER),
    "torch_fp32": (torch, torch.float32),
    "torch_need_autocast_promote": (torch, torch.float32),
    "torch_expect_builtin_promote": (torch, torch.float32),
    "nn_fp16": (torch._C._nn, LOWER),
    "nn_fp32": (torch._C._nn, torch.float32),
    "linalg_fp16": (torch._C._linalg, LOWER),
    "methods_fp16": (None, LOWER),
    "methods_fp32": (None, torch.float32),
    "methods_expect_builtin_promote": (None, torch.float32),
}


def entries() -> list[str]:
    lists = AutocastTestLists("cpu")
    return [f"{name}__{index}__{entry[0]}" for name in LISTS for index, entry in enumerate(getattr(lists, name))]


class TestAutocast(TestCase):
    def arguments(self, entry: str, device: str, lower: torch.dtype) -> tuple[Any, str, Any, tuple[Any, ...], dict[str, Any], Any]:
        """(module, op, dtype it runs in, args, kwargs, dtype of the result or None) of an entry of ``entries()``."""
        name, index, op = entry.split("__", 2)
        module, kind = LISTS[name]
        torch.manual_seed(0)
        row = getattr(AutocastTestLists("cpu"), name)[int(index)]
        # The lists are written for float16 regions; a promotion that meets the other lower dtype is an error on every device.
        args = tree_map_only(torch.Tensor, lambda value: value.to(device, lower if value.dtype is torch.float16 else None), row[1])
        extra = row[2] if len(row) > 2 else None
        if extra is True or extra is False:  # "needs another library"
            extra = None
        if isinstance(extra, dict):
            return module, op, kind, args, extra, None
        return module, op, kind, args, {}, extra

    @parametrize("lower", [torch.bfloat16, torch.float16])
    @parametrize("entry", entries())
    def test_list(self, device: str, entry: str, lower: torch.dtype) -> None:
        module, op, kind, args, kwargs, result = self.arguments(entry, device, lower)
        run_as = lower if kind is LOWER else kind
        if torch.device(device).type == "cpu":
            cast = tree_map_only(torch.Tensor, lambda value: value.to(run_as) if value.is_floating_point() else value, args)
            function = getattr(module, op) if module is not None and hasattr(module, op) else getattr(torch.Tensor, op)
            function(*cast, **kwargs)
            return
        RunsAutocast._run_autocast_outofplace(
            self, op, args, run_as, torch.device(device).type, out_type=result, module=module, add_kwargs=kwargs, amp_dtype=lower
        )

    @parametrize("lower", [torch.bfloat16, torch.float16])
    def test_banned(self, device: str, lower: torch.dtype) -> None:
        """Refused under autocast, by a message that names the remedy; device ``cpu`` runs them in float32."""
        kind = torch.device(device).type
        for op, args, module in AutocastTestLists(device).banned:
            with torch.amp.autocast(kind, dtype=lower):
                if kind == "cpu":
                    getattr(module, op)(*args)
                    continue
                with self.assertRaisesRegex(RuntimeError, "unsafe to autocast"):
                    getattr(module, op)(*args)

    @parametrize("lower", [torch.bfloat16, torch.float16])
    def test_cache_and_nesting(self, device: str, lower: torch.dtype) -> None:
        """Weights are cast once in a region, gradients arrive in their dtype, and ``enabled=False`` inside turns it off."""
        kind = torch.device(device).type
        weight = torch.randn(8, 8, device=device, requires_grad=True)
        value = torch.randn(8, 8, device=device)
        with torch.amp.autocast(kind, dtype=lower):
            first, second = value @ weight, value @ weight
            with torch.amp.autocast(kind, enabled=False):
                self.assertEqual((value @ weight).dtype, torch.float32)
            self.assertEqual((first.dtype, second.dtype), (lower, lower))
        casts = {id(product.grad_fn.next_functions[1][0]) for product in (first, second) if product.grad_fn is not None}
        self.assertEqual(len(casts), 1)
        (first + second).sum().backward()
        self.assertEqual(getattr(weight.grad, "dtype", None), torch.float32)

    def test_custom_function(self, device: str) -> None:
        """``custom_fwd(cast_inputs=)`` and ``custom_bwd`` of ``torch.amp``."""
        kind = torch.device(device).type

        class Product(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type=kind, cast_inputs=torch.float32)
            def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                ctx.inside = torch.is_autocast_enabled(kind)
                ctx.save_for_backward(a, b)
                return a @ b

            @staticmethod
            @torch.amp.custom_bwd(device_type=kind)
            def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                a, b = ctx.saved_tensors
                return grad @ b.t(), a.t() @ grad

        a, b = (torch.randn(4, 4, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        with torch.amp.autocast(kind, dtype=torch.bfloat16):
            out = Product.apply(a, b)
        self.assertEqual(out.dtype, torch.float32)
        self.assertFalse(out.grad_fn.inside)
        out.sum().backward()
        self.assertEqual(getattr(a.grad, "dtype", None), torch.bfloat16)


CLASSES = [TestAutocast]

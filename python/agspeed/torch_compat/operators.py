# SPDX-License-Identifier: Apache-2.0
"""Operators: their types and schemas, their kernels, the code that registered them, and updates of lists of tensors.

Without this part, no graph can be read, so everything runs eagerly. All needs exist since torch 2.11. Stateless; any
thread.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch import Tensor
    from torch._decomp import get_decompositions
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
    from torch._prims_common import is_non_overlapping_and_dense_or_false

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "get_decompositions",
    "is_non_overlapping_and_dense_or_false",
    "run_and_save_rng_state",
    "run_with_rng_state",
]

_RESAMPLING = (
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
)
_WITH_SYMBOLS = ("_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_nearest2d")
_HOMES = ("_nn", "_fft", "_linalg", "_special")
_LATER_HOMES = ("_autograd", "_functorch")
PART = Part(
    "operators",
    __name__,
    exports=(
        "torch._decomp.get_decompositions",
        "torch._ops.HigherOrderOperator",
        "torch._ops.OpOverload",
        "torch._ops.OpOverloadPacket",
        "torch._prims.rng_prims.run_and_save_rng_state",
        "torch._prims.rng_prims.run_with_rng_state",
        "torch._prims_common.is_non_overlapping_and_dense_or_false",
    ),
    needs=(
        "torch._C.DispatchKey.CompositeImplicitAutograd",
        "torch._C._dispatch_dump",
        "torch._C._dispatch_has_kernel_for_dispatch_key",
        "torch._C._dispatch_pystub",
        "torch._C._jit_get_operation",
        "torch._C._nn.adaptive_avg_pool2d",
        "torch._decomp.decompositions.upsample_compute_output_size",
        "torch._foreach_add_",
        "torch._foreach_mul",
        "torch._foreach_mul_",
        "torch._foreach_sub",
        "torch._higher_order_ops",
        "torch._library.custom_ops.CustomOpDef._init_fn",
        "torch._library.custom_ops.OPDEFS",
        "torch._library.fake_impl.FakeImplHolder.kernel",
        "torch._library.simple_registry.SimpleOperatorEntry.fake_impl",
        "torch._library.simple_registry.singleton.find",
        "torch._ops.OpOverload._dispatch_cache",
        "torch._ops.OpOverload._op_dk",
        "torch._ops.OpOverload._schema",
        "torch._ops.OpOverload.py_kernels",
        "torch._prims_common.suggest_memory_format",
        "torch._ops.OpOverloadPacket._qualified_op_name",
        *(f"torch._C.{home}" for home in (*_HOMES, *_LATER_HOMES)),
    ),
)
if not TYPE_CHECKING:
    __getattr__ = PART.load

_REGISTERED_AT = re.compile(r"registered at (.+\.py|<.+>):\d+")


# --- properties -------------------------------------------------------------------------------------------------------


def schema_of(operator: Any) -> Any:
    """The schema of an `OpOverload`: its name, its arguments and results, and the memory that they share."""
    return operator._schema


def name_of(target: Any) -> str | None:
    """The name "library::operator" of an operator or of one of its overloads; None for anything else."""
    from torch._ops import OpOverload, OpOverloadPacket

    if isinstance(target, OpOverload):
        return str(target._schema.name)
    return str(target._qualified_op_name) if isinstance(target, OpOverloadPacket) else None


def is_composite(operator: Any) -> bool:
    """Whether an operator has a kernel that calls other operators, and no kernel for a device."""
    import torch

    has_kernel = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, operator.name())
    return has_kernel("CompositeImplicitAutograd") and not any(map(has_kernel, ("CPU", "CUDA")))


def composite_kernel(operator: Any) -> Callable[..., Any]:
    """The kernel of a composite operator, usually written in C++.

    An operator's `decompose` prefers forms in Python, which compute pixel positions with floating-point arithmetic.
    """
    import torch

    return functools.partial(operator._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


class _WholeResampling:
    """Counts the users of `whole_resampling`, and replaces kernels while there is one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._replaced: list[tuple[Any, dict[Any, Any]]] = []

    def enter(self) -> None:
        with self._lock:
            self._num_users += 1
            if self._num_users == 1:
                self._replace()

    def leave(self) -> None:
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                for operator, kernels in self._replaced:
                    _set_python_kernels(operator, kernels)
                self._replaced = []

    def _replace(self) -> None:
        import torch

        key = torch._C.DispatchKey
        for name in _RESAMPLING:
            packet = getattr(torch.ops.aten, name)
            kernel = _sized(packet.default, packet.vec.py_kernels[key.CompositeImplicitAutograd], name in _WITH_SYMBOLS)
            self._exchange(packet.default, {}, (key.Autograd, key.CompositeImplicitAutograd))
            self._exchange(packet.vec, {key.Autograd: kernel, key.CompositeImplicitAutograd: kernel})
        backward = torch.ops.aten.upsample_bilinear2d_backward.default
        self._exchange(backward, {key.Meta: _image_gradient, **backward.py_kernels})

    def _exchange(self, operator: Any, added: dict[Any, Any], removed: tuple[Any, ...] = ()) -> None:
        before = dict(operator.py_kernels)
        self._replaced.append((operator, before))
        kept = {key: kernel for key, kernel in before.items() if key not in removed}
        _set_python_kernels(operator, {**kept, **added})


def _set_python_kernels(operator: Any, kernels: dict[Any, Any]) -> None:
    operator.py_kernels.update(kernels)
    for key in operator.py_kernels.keys() - kernels.keys():
        del operator.py_kernels[key]
    operator._dispatch_cache.clear()


def _sized(operator: Any, in_parts: Callable[..., Any], takes_symbols: bool) -> Callable[..., Any]:
    """The overload "vec" of a resampling operator, which may get a size or scales, as a call of the one with a size.

    If torch cannot trace the gradient of `operator` for symbolic sizes, those are resampled `in_parts`.
    """
    from torch._decomp.decompositions import upsample_compute_output_size

    def resample(input: Any, output_size: Any, *options: Any) -> Any:
        *corners, scale_factors = options  # align_corners, if the operator has it
        size = upsample_compute_output_size(input.size(), output_size, scale_factors)
        if not takes_symbols and not all(isinstance(length, int) for length in (*input.size(), *size)):
            return in_parts(input, output_size, *options)
        return operator(input, size, *corners, *(scale_factors or [None] * len(size)))

    return resample


def _image_gradient(gradient: Any, output_size: Any, input_size: Any, *options: Any) -> Any:
    """The shape and layout of a gradient of a 2-D image."""
    from torch._prims_common import suggest_memory_format

    return gradient.new_empty(input_size).to(memory_format=suggest_memory_format(gradient))


_whole_resampling = _WholeResampling()


@contextlib.contextmanager
def whole_resampling() -> Iterator[None]:
    """Inside the block, graphs keep operators that resample images. Otherwise tracing turns them into `index`.

    1-D, 3-D and bicubic operators are kept if their sizes are fixed. The block acts on all threads, so a graph that
    another thread traces meanwhile may keep its operators as well.
    """
    _whole_resampling.enter()
    try:
        yield
    finally:
        _whole_resampling.leave()


def pools() -> tuple[Any, ...]:
    """The functions that graphs call for average pooling of feature maps to a given size."""
    import torch

    return torch.nn.functional.adaptive_avg_pool2d, torch._C._nn.adaptive_avg_pool2d


def load_higher_order() -> None:
    """Registers the operators that take graphs as arguments."""
    importlib.import_module("torch._higher_order_ops")


@functools.cache
def homes() -> tuple[tuple[Any, str], ...]:
    """The objects outside torch's public modules that hold functions that graphs call, each with its name."""
    import torch

    before = ((getattr(torch._C, name), f"torch._C.{name}") for name in _HOMES)
    after = ((getattr(torch._C, name), f"torch._C.{name}") for name in _LATER_HOMES)
    return (*before, (torch.Tensor, "torch.Tensor"), (torch._C, "torch._C"), *after)


# --- registration -----------------------------------------------------------------------------------------------------


def defining_module(name: str) -> str | None:
    """The module with the function that `torch.library.custom_op` made the operator "library::operator" of, or None."""
    from torch._library.custom_ops import OPDEFS

    return str(OPDEFS[name]._init_fn.__module__) if name in OPDEFS else None


def announced_module(name: str) -> str | None:
    """The module that a C++ library has registered for the operator's shape function, or None."""
    import torch

    stub: Any = None
    with contextlib.suppress(RuntimeError):
        stub = torch._C._dispatch_pystub(name, "")
    return str(stub[0]) if stub is not None else None


def registering_files(name: str) -> Iterator[str]:
    """The files that registered kernels or a shape function of the operator, if torch has recorded them."""
    import torch
    from torch._library.simple_registry import singleton

    for overload in torch._C._jit_get_operation(name)[1] or []:
        yield from _REGISTERED_AT.findall(torch._C._dispatch_dump(f"{name}.{overload}" if overload else name))
    kernel = singleton.find(name).fake_impl.kernel
    if kernel is not None:
        yield kernel.source.rpartition(":")[0]


# --- lists of tensors -------------------------------------------------------------------------------------------------


def multiplied(tensors: list[Tensor], factors: list[float]) -> tuple[Tensor, ...]:
    """Each tensor times its factor, in one call."""
    import torch

    return torch._foreach_mul(tensors, factors)


def differences(tensors: list[Tensor], others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each tensor minus the other one, in one call."""
    import torch

    return torch._foreach_sub(tensors, others)


def multiply(tensors: list[Tensor], factors: list[float]) -> None:
    """Multiplies each tensor by its factor, in place, in one call."""
    import torch

    torch._foreach_mul_(tensors, factors)


def add(tensors: list[Tensor], others: Any) -> None:
    """Adds to each tensor its other tensor, or one number, in place, in one call."""
    import torch

    torch._foreach_add_(tensors, others)

# SPDX-License-Identifier: Apache-2.0
"""Dispatch modes for the gate's reference runs, and the guard that hides the gate from the training process.

`DrawRecorder` observes an eager run in its own precision: it counts the bytes that the run allocates and keeps the
state of the random generators before every random operator. `Promoted` runs the same graph in float64. Explicit casts
to bfloat16 and float16 still round there, because a candidate that skips them computes something else. Everything else
keeps full precision, and random operators draw the same numbers as the recorded run. Modes belong to one run and one
thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from agspeed.devices.accelerator import numerics_flags, set_numerics_flags
from agspeed.devices.random_state import RandomState
from agspeed.torch_compat.modes import TorchDispatchMode, tree_flatten, tree_map_only, tree_unflatten
from agspeed.torch_compat.operators import HigherOrderOperator, schema_of
from agspeed.tuning.gate.inputs import WIDER

RANDOM = torch.Tag.nondeterministic_seeded
_ROUNDING = (torch.float16, torch.bfloat16)
_UNSTEADY = (
    "_embedding_bag_dense_backward",
    "adaptive_max_pool2d_backward",
    "avg_pool3d_backward",
    "cumsum",
    "embedding_dense_backward",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "histc",
    "index_add",
    "index_add_",
    "index_put",
    "index_put_",
    "max_pool3d_with_indices_backward",
    "reflection_pad2d_backward",
    "replication_pad2d_backward",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "upsample_bilinear2d_backward",
    "upsample_nearest2d_backward",
)
"""Operators without a deterministic result, from the documentation of torch.use_deterministic_algorithms."""
_CASTS = (torch.ops.aten._to_copy.default,)


Draw = tuple[Any, RandomState | None, list[torch.dtype | None]]
"""A random operator, the generators' state before it, and the element types of its arguments (None for others)."""
_NO_DRAW: Draw = (None, None, [])


class NoReferenceError(Exception):
    """The graph cannot be run in float64; the message says why."""


class DrawRecorder(TorchDispatchMode):
    """Records random operators and allocated bytes of an eager run. Raises: NoReferenceError for higher-order
    operators, because it cannot see the random numbers that their bodies draw."""

    supports_higher_order_operators = True

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._devices = devices
        self.draws: list[Draw] = []
        self.promoted_bytes = 0
        self.unsteady: set[str] = set()
        """Operators whose bits may differ from run to run, such as sums that use atomic additions."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            raise NoReferenceError(f"operator {func} runs bodies of its own, which the gate cannot follow")
        if RANDOM in func.tags:
            dtypes = [_dtype_of(leaf) for leaf in tree_flatten((args, kwargs))[0]]
            self.draws.append((func, RandomState(self._devices), dtypes))
        if torch.Tag.nondeterministic_bitwise in func.tags or func.overloadpacket.__name__ in _UNSTEADY:
            self.unsteady.add(func.overloadpacket.__name__)
        result = func(*args, **kwargs)
        if not has_alias(func):
            for leaf in tree_flatten(result)[0]:
                if isinstance(leaf, torch.Tensor):
                    self.promoted_bytes += leaf.numel() * WIDER.get(leaf.dtype, leaf.dtype).itemsize
        return result


class Promoted(TorchDispatchMode):
    """Runs a graph in float64, on promoted inputs; see the module docstring."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = iter(draws)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if RANDOM in func.tags:
            return self._redraw(func, args, kwargs)
        if func is torch.ops.aten.view.dtype:
            raise NoReferenceError("the graph reinterprets the bits of floating point numbers")
        if func in _CASTS and kwargs.get("dtype") in _ROUNDING:
            return func(*args, **kwargs).to(torch.float64)
        args, kwargs = tree_map_only(torch.dtype, lambda dtype: WIDER.get(dtype, dtype), (args, kwargs))
        result = func(*args, **kwargs)
        if has_alias(func):
            return result
        return tree_map_only(torch.Tensor, _widened, result)

    def _redraw(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Repeats a recorded draw in its own precision: the same generator state gives the same numbers."""
        recorded, state, dtypes = next(self._draws, _NO_DRAW)
        leaves, structure = tree_flatten((args, kwargs))
        if recorded is not func or state is None or len(leaves) != len(dtypes):
            raise NoReferenceError(f"in float64 the graph draws its random numbers in another way ({func})")
        narrow = [
            leaf.to(dtype) if isinstance(leaf, torch.Tensor) and dtype is not None else leaf
            for leaf, dtype in zip(leaves, dtypes, strict=True)
        ]
        narrow_args, narrow_kwargs = tree_unflatten(narrow, structure)
        state.restore()
        result = func(*narrow_args, **narrow_kwargs)
        for argument, wide, thin in zip(schema_of(func).arguments, args, narrow_args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                wide.copy_(thin)
                return wide
        return tree_map_only(torch.Tensor, _widened, result)


@contextlib.contextmanager
def undisturbed(devices: Sequence[torch.device]) -> Iterator[None]:
    """Restores torch's process-wide state after the block: generators, default dtype, threads, modes and flags."""
    random_state = RandomState(devices)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    grad_mode, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    kinds = sorted({device.type for device in devices} | {"cpu"})
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    flags = numerics_flags()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cache)
        for kind, enabled, low in autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, low)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        set_numerics_flags(flags)
        torch.set_grad_enabled(grad_mode)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        random_state.restore()


def _dtype_of(leaf: Any) -> torch.dtype | None:
    return leaf.dtype if isinstance(leaf, torch.Tensor) else None


def has_alias(func: Any) -> bool:
    """Returns True if a result shares memory with an argument: for views and in-place operators."""
    return any(returned.alias_info is not None for returned in schema_of(func).returns)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(WIDER[tensor.dtype]) if tensor.dtype in WIDER else tensor

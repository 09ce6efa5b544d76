# SPDX-License-Identifier: Apache-2.0
"""Changes the bucket layout of a DistributedDataParallel during training.

A new layout needs a new `torch.distributed.Reducer`, created in the same way as the wrapper's first one. This uses
private parts of torch; if one is missing, the wrapper keeps its layout. All ranks change to the same layout between the
same two steps. Every reducer, a new one too, rebuilds its buckets once in the order of its first step. It does so in
the next forward, with a broadcast.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as torch_distributed
from torch.nn.parallel import DistributedDataParallel

from agspeed.distributed.layouts import Layout
from agspeed.torch_compat import ddp

_distributed: Any = torch_distributed
_CAPS = ("bucket_bytes_cap_list", "bucket_bytes_cap", "bucket_bytes_cap_default")
_STATELESS_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
"""The hooks in torch's default_hooks that keep no state from one bucket to the next."""


def why_left_alone(wrapper: DistributedDataParallel) -> str | None:
    """Why the layout of a wrapper must not change, as a sentence; None if it may."""
    if (missing := ddp.missing_for_layouts(wrapper)) is not None:
        return f"this torch's DistributedDataParallel has no {missing}"
    hooks = [getattr(hook, "__qualname__", str(hook)) for hook, _ in ddp.hooks_of(wrapper)]
    named = ddp.logging_data(wrapper).get("comm_hook", "")
    reasons = {
        "it has a communication hook that may keep state by bucket": any(
            name not in _STATELESS_HOOKS for name in hooks
        ),
        "it has a built-in communication hook": bool(named) and not hooks,
        "it trains in mixed precision": wrapper.mixed_precision is not None,
        "it delays reductions": ddp.delays_reductions(wrapper),
        "its reducer is Python's": ddp.reduces_in_python(wrapper),
        "its optimizer steps in the backward": ddp.steps_in_backward(wrapper),
        "it is in a join": ddp.is_in_join(wrapper),
        "torch's debug level is DETAIL": _distributed.get_debug_level() == _distributed.DebugLevel.DETAIL,
        "it is not on the CPU": any(parameter.device.type != "cpu" for parameter in wrapper.parameters()),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class WrapperLayouts:
    """The layout of one wrapper. Use it on the training thread and between two steps only."""

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self._wrapper: Any = wrapper
        self._own = {name: getattr(wrapper, name, None) for name in _CAPS}
        self.current: Layout | None = None
        """None: the user's own."""
        self.wanted: Layout | None = None
        """The layout that the ranks have agreed on, from their next forward on; None: the user's own."""
        self.in_backward = ""
        """The name of the layout in the latest backward that reduced gradients; "" for the user's own."""

    @property
    def own(self) -> Layout:
        """The user's own layout, as caps."""
        caps = self._own["bucket_bytes_cap_list"]
        if caps:
            return Layout(caps[0], caps[-1])
        rest = int(self._own["bucket_bytes_cap"] or 0)
        is_default = self._own["bucket_bytes_cap_default"]
        first = ddp.first_bucket_bytes() if is_default else rest
        return Layout(first, rest)

    def want(self, name: str) -> None:
        """Sets the wanted layout by its name; "" for the user's own."""
        self.wanted = Layout.parse(name) if name else None

    def note_backward(self) -> None:
        """Called when a backward that reduces gradients begins."""
        self.in_backward = self.current.name if self.current is not None else ""

    def change(self, layout: Layout | None) -> None:
        """Gives the wrapper a new reducer with `layout` (None: with the user's own). It takes milliseconds."""
        if layout == self.current:
            return
        for name, value in self._own.items():
            setattr(self._wrapper, name, value)
        if layout is not None:
            self._wrapper.bucket_bytes_cap_list = [layout.first_bytes, layout.rest_bytes]
            self._wrapper.bucket_bytes_cap_default = False
        ddp.renew_reducer(self._wrapper)
        self.current = layout

    def ready_times(self) -> list[tuple[float, int]]:
        """Returns (seconds since the backward began, bytes) of each gradient in the latest backward, sorted by time."""
        parameters, _ = ddp.parameters_of(self._wrapper)
        stats = self._wrapper.reducer.get_backward_stats()
        sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        return sorted((nanoseconds / 1e9, size) for nanoseconds, size in zip(stats, sizes, strict=True))

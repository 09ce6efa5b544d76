# SPDX-License-Identifier: Apache-2.0
"""Another bucket layout for a DistributedDataParallel that trains.

It takes a new `torch.distributed.Reducer`, made as the wrapper makes its own (private parts of torch: a test pins them,
and where one is missing the wrapper is left alone). All ranks change to the same layout between the same two steps. A
reducer rebuilds its buckets once, with a broadcast in the forward after its first step, along the order of that step;
so does a new one.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as torch_distributed
from torch.nn.parallel import DistributedDataParallel

from agspeed.distributed.layouts import Layout

_distributed: Any = torch_distributed
_PRIVATE = (
    "_build_params_for_reducer",
    "_build_debug_param_to_name_mapping",
    "_ddp_init_helper",
    "_remove_autograd_hooks",
    "_get_ddp_logging_data",
)
_ATTRIBUTES = ("bucket_bytes_cap_list", "bucket_bytes_cap", "bucket_bytes_cap_default", "_comm_hooks")
_STATELESS_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
"""Of torch's default_hooks: they keep nothing from one bucket to the next."""


def why_left_alone(wrapper: DistributedDataParallel) -> str | None:
    """Why the layout of a wrapper is not to be changed, as a sentence; None where it may be."""
    ddp: Any = wrapper
    missing = [name for name in (*_PRIVATE, *_ATTRIBUTES, "reducer") if not hasattr(ddp, name)]
    if missing:
        return f"this torch's DistributedDataParallel has no {missing[0]}"
    hooks = [getattr(hook, "__qualname__", str(hook)) for hook, _ in ddp._comm_hooks]
    named = ddp._get_ddp_logging_data().get("comm_hook", "")
    reasons = {
        "it has a communication hook that may keep state by bucket": any(
            name not in _STATELESS_HOOKS for name in hooks
        ),
        "it has a built-in communication hook": bool(named) and not hooks,
        "it trains in mixed precision": ddp.mixed_precision is not None,
        "it delays reductions": bool(ddp._delay_all_reduce_params),
        "its reducer is Python's": bool(ddp._use_python_reducer),
        "its optimizer steps in the backward": any(hasattr(p, "_in_backward_optimizers") for p in ddp.parameters()),
        "it is in a join": ddp._join_config.enable,
        "torch's debug level is DETAIL": _distributed.get_debug_level() == _distributed.DebugLevel.DETAIL,
        "it is not on the CPU": any(parameter.device.type != "cpu" for parameter in ddp.parameters()),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class WrapperLayouts:
    """What layout a wrapper has; between two steps only, on the training thread."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._own = {name: getattr(ddp, name, None) for name in _ATTRIBUTES[:3]}
        self.current: Layout | None = None
        """None: the user's own."""

    @property
    def own(self) -> Layout:
        """The user's, as caps."""
        caps = self._own["bucket_bytes_cap_list"]
        if caps:
            return Layout(caps[0], caps[-1])
        rest = int(self._own["bucket_bytes_cap"] or 0)
        is_default = self._own["bucket_bytes_cap_default"]
        first = int(_distributed._DEFAULT_FIRST_BUCKET_BYTES) if is_default else rest
        return Layout(first, rest)

    def change(self, layout: Layout | None) -> None:
        """Gives the wrapper a new reducer with that layout, or with its own again. Costs milliseconds."""
        if layout == self.current:
            return
        ddp: Any = self._ddp
        for name, value in self._own.items():
            setattr(ddp, name, value)
        if layout is not None:
            ddp.bucket_bytes_cap_list = [layout.first_bytes, layout.rest_bytes]
            ddp.bucket_bytes_cap_default = False
        ddp._remove_autograd_hooks()
        parameters, expects_sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, expects_sparse, names, ddp.static_graph)
        for hook, state in ddp._comm_hooks:
            ddp.logger._set_comm_hook_name(hook.__qualname__)
            _distributed._register_comm_hook(ddp.reducer, state, hook)
        if ddp.static_graph:
            # Else the first step with the new reducer would not be reduced, and ranks would drift apart.
            ddp._static_graph_delay_allreduce_enqueued = False
            ddp.reducer._set_static_graph()
            ddp.logger._set_static_graph()
        self.current = layout

    def ready_times(self) -> list[tuple[float, int]]:
        """(seconds since the backward began, bytes) of each gradient of the latest backward, in the order of time."""
        parameters, _ = self._ddp._build_params_for_reducer()  # type: ignore[no-untyped-call]
        stats = self._ddp.reducer.get_backward_stats()
        sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        return sorted((nanoseconds / 1e9, size) for nanoseconds, size in zip(stats, sizes, strict=True))

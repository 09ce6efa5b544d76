# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and `replicate()`: the wrapper that reduces a module's gradients, its buckets, its timings.

Only ranks use it. Without this part, a wrapped module runs eagerly. All needs exist since torch 2.11. Threads: the
training thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agspeed.torch_compat.part import Part

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel

_DDP = "torch.nn.parallel.DistributedDataParallel"
LAYOUT_NEEDS = (
    # keep-sorted
    "_build_debug_param_to_name_mapping",
    "_build_params_for_reducer",
    "_comm_hooks",
    "_ddp_init_helper",
    "_delay_all_reduce_params",
    "_get_ddp_logging_data",
    "_remove_autograd_hooks",
    "_use_python_reducer",
    "bucket_bytes_cap",
    "bucket_bytes_cap_default",
    "bucket_bytes_cap_list",
    "reducer",
)
"""The members that a change of bucket layout needs. A wrapper that lacks one keeps its layout."""
PART = Part(
    "ddp",
    __name__,
    needs=(
        "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES",
        "torch.distributed._composable.contract._get_registry",
        "torch.distributed._composable.replicate.replicate.state",
        "torch.distributed._register_comm_hook",
        "torch.nn.parallel.distributed._find_tensors",
        f"{_DDP}._active_ddp_module",
        f"{_DDP}._join_config",
        f"{_DDP}._static_graph_delay_allreduce_enqueued",
        f"{_DDP}.logger",
        f"{_DDP}._set_ddp_runtime_logging_sample_rate",
        f"{_DDP}.require_backward_grad_sync",
        *(f"{_DDP}.{name}" for name in LAYOUT_NEEDS),
    ),
    lost="nothing is tuned under DistributedDataParallel, models train eagerly there",
)


# --- wrappers ---------------------------------------------------------------------------------------------------------


def active() -> DistributedDataParallel | None:
    """The wrapper whose forward runs on this thread, or None."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._active_ddp_module


def is_replicated(module: nn.Module) -> bool:
    """Whether `replicate()` was applied to a module."""
    from torch.distributed._composable.contract import _get_registry

    return "replicate" in (_get_registry(module) or {})


def wrapper_by_replicate(module: nn.Module) -> DistributedDataParallel | None:
    """The wrapper that `replicate()` has attached to a module; None before the module's first call, which makes it."""
    from torch.distributed._composable.replicate import replicate

    reference = getattr(replicate.state(module), "_ddp_weakref", None)
    return reference() if reference is not None else None


def will_reduce(wrapper: Any) -> bool:
    """Whether the forward that has just ended may have a backward that reduces gradients."""
    return bool(wrapper.require_backward_grad_sync) and not is_in_join(wrapper)


def is_in_join(wrapper: Any) -> bool:
    """Whether the wrapper is in a join, so that its ranks may have unequal numbers of steps."""
    return bool(wrapper._join_config.enable)


def tensors_in(output: Any) -> list[Tensor]:
    """The tensors that a wrapper finds in the result of its module."""
    from torch.nn.parallel.distributed import _find_tensors

    return list(_find_tensors(output))


# --- buckets and reducers ---------------------------------------------------------------------------------------------


def missing_for_layouts(wrapper: Any) -> str | None:
    """The first of `LAYOUT_NEEDS` that a wrapper does not have, or None."""
    return next((name for name in LAYOUT_NEEDS if not hasattr(wrapper, name)), None)


def first_bucket_bytes() -> int:
    """The default size of the bucket that is reduced first."""
    import torch

    private: Any = torch.distributed
    return int(private._DEFAULT_FIRST_BUCKET_BYTES)


def hooks_of(wrapper: Any) -> list[tuple[Any, Any]]:
    """The wrapper's communication hooks in Python, as pairs of hook and state."""
    return list(wrapper._comm_hooks)


def delays_reductions(wrapper: Any) -> bool:
    return bool(wrapper._delay_all_reduce_params)


def reduces_in_python(wrapper: Any) -> bool:
    return bool(wrapper._use_python_reducer)


def steps_in_backward(wrapper: Any) -> bool:
    """Whether an optimizer steps as soon as a gradient is ready. torch marks such parameters with an attribute."""
    return any(hasattr(parameter, "_in_backward_optimizers") for parameter in wrapper.parameters())


def parameters_of(wrapper: Any) -> tuple[list[Tensor], list[bool]]:
    """The parameters that the wrapper reduces, in its order, and whether each one expects a sparse gradient."""
    parameters, expects_sparse = wrapper._build_params_for_reducer()
    return parameters, expects_sparse


def renew_reducer(wrapper: Any) -> None:
    """Gives a wrapper a new reducer, made as the wrapper makes its own, with its current bucket caps."""
    import torch

    wrapper._remove_autograd_hooks()
    parameters, expects_sparse = parameters_of(wrapper)
    names = wrapper._build_debug_param_to_name_mapping(parameters)
    wrapper._ddp_init_helper(parameters, expects_sparse, names, wrapper.static_graph)
    private: Any = torch.distributed
    for hook, state in wrapper._comm_hooks:
        wrapper.logger._set_comm_hook_name(hook.__qualname__)
        private._register_comm_hook(wrapper.reducer, state, hook)
    if wrapper.static_graph:
        # Without this, the first step with the new reducer is not reduced, and the replicas differ from then on.
        wrapper._static_graph_delay_allreduce_enqueued = False
        wrapper.reducer._set_static_graph()
        wrapper.logger._set_static_graph()


USUAL_TIMED_STEPS = 100
"""A wrapper times its first iterations, and one in this number of the later ones."""


# --- timings ----------------------------------------------------------------------------------------------------------


def logging_data(wrapper: Any) -> dict[str, Any]:
    """The wrapper's logging data: times of its latest timed step, and its settings."""
    data: dict[str, Any] = wrapper._get_ddp_logging_data()
    return data


class ReductionTimes(NamedTuple):
    """Times of one iteration's backward, in nanoseconds since 1970."""

    iteration: int
    """Which one of the reducer's iterations it was, from 1."""
    computed_ns: int
    """When the last gradient was computed."""
    reduced_ns: int
    """When the last reduction ended."""


def time_steps(wrapper: Any, *, every: int) -> None:
    """Makes the wrapper time one in `every` of its iterations, from the next forward on."""
    wrapper._set_ddp_runtime_logging_sample_rate(every)


def reduction_times(wrapper: Any) -> ReductionTimes | None:
    """The times of the latest timed iteration whose backward has ended before the latest forward. None if there is
    none, and if this torch reports its times in another way."""
    data = logging_data(wrapper)
    try:
        times = (data["iteration"], data["backward_compute_time_end"], data["backward_comm_time_end"])
        return ReductionTimes(*map(int, times))
    except (KeyError, TypeError, ValueError):
        return None


def amend_logging_data(amend: Callable[[Callable[[Any], dict[str, Any]]], Callable[[Any], dict[str, Any]]]) -> None:
    """Replaces the method that returns the logging data of all wrappers by `amend(original)`."""
    from torch.nn.parallel import DistributedDataParallel

    wrapper: Any = DistributedDataParallel
    wrapper._get_ddp_logging_data = amend(wrapper._get_ddp_logging_data)

# SPDX-License-Identifier: Apache-2.0
"""The times at which the buckets of one step were full, in flight and reduced.

DistributedDataParallel itself times its first steps and every hundredth step. With our backend, the flight record adds
when each reduction began and ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from agspeed.distributed import groups, metrics
from agspeed.torch_compat.ddp import logging_data, parameters_of

_NS = 1e-9


@dataclass(frozen=True)
class BucketTimes:
    """A bucket's times in seconds since the backward began.

    `begun_s` and `done_s` are the begin and end of its reduction; None if they were not recorded.
    """

    bytes: int
    ready_s: float
    begun_s: float | None = None
    done_s: float | None = None


@dataclass(frozen=True)
class StepProfile:
    """The latest timed step. All times are in seconds since its backward began."""

    gradients_s: float
    """When the last gradient was computed."""
    communication_begun_s: float
    communication_done_s: float
    buckets: list[BucketTimes]

    @property
    def exposed_s(self) -> float:
        """How long the step waited for reductions after its last gradient."""
        return max(self.communication_done_s - self.gradients_s, 0.0)


def latest_step(ddp: DistributedDataParallel) -> StepProfile | None:
    """Returns the latest timed step of a wrapper. It costs training nothing.

    Returns None before a step was timed, and if this torch reports its times in another way.
    """
    wrapper: Any = ddp
    try:
        data = logging_data(wrapper)
        begun, ended = (int(data[f"backward_compute_time_{end}"]) for end in ("start", "end"))
        first, last = (int(data[f"backward_comm_time_{end}"]) for end in ("start", "end"))
        members = data.get("rebuilt_per_bucket_param_indices") or ""
        buckets = _buckets(wrapper, [[int(word) for word in part.split()] for part in members.split(",") if part])
    except (AttributeError, KeyError, ValueError, IndexError):
        return None
    if not begun or not buckets:
        return None
    _find_reductions(wrapper, buckets, begun, last)
    return StepProfile(
        (ended - begun) * _NS, (first - begun) * _NS, (last - begun) * _NS, [BucketTimes(**each) for each in buckets]
    )


def _buckets(wrapper: Any, members: list[list[int]]) -> list[dict[str, Any]]:
    """Returns each bucket's bytes and the time when its last gradient was ready, in the order of the reductions."""
    parameters, _ = parameters_of(wrapper)
    ready = wrapper.reducer.get_backward_stats()
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    return [
        {"bytes": sum(sizes[index] for index in part), "ready_s": max(ready[index] for index in part) * _NS}
        for part in members
    ]


def _find_reductions(wrapper: Any, buckets: list[dict[str, Any]], begun_ns: int, done_ns: int) -> None:
    """Adds `begun_s` and `done_s` if the flight record still has all reductions of that step."""
    if groups.backend_of(wrapper.process_group) != "agspeed":
        return
    begun, done = begun_ns * _NS, done_ns * _NS
    found = [
        (operation["started_at"] - begun, operation["started_at"] + operation["seconds"] - begun)
        for group in metrics.flight_record(wrapper.process_group)["groups"]
        for operation in group["operations"]
        if operation["operation"] == "all_reduce" and begun <= operation["started_at"] <= done
    ]
    if len(found) == len(buckets):
        for bucket, (started, ended) in zip(buckets, sorted(found), strict=True):
            bucket |= {"begun_s": started, "done_s": ended}

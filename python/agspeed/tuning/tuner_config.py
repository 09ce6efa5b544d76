# SPDX-License-Identifier: Apache-2.0
"""What a user's settings mean to the tuner (runtime/tune/config.h): which arms there are and what it may spend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from agspeed.backends import CompileOptions, candidates
from agspeed.config import Settings
from agspeed.distributed.layouts import plan_of
from agspeed.tuning.plan import EAGER

_DEFAULT_COMPILE_S = {
    "cudagraph": (5.0, 1.0),
    "inductor": (15.0, 3.0),
    "inductor-cudagraphs": (15.0, 3.0),
    "inductor-max-autotune": (20.0, 3.0),
    "inductor-staged": (20.0, 3.0),
}
MEMORY_SLACK_BYTES = 16 << 20
"""What a plan may need beyond eager's peak and the share of it that ``memory_slack`` allows."""
_OTHER_COMPILE_S = (0.0, 1.0)
_STANDS_IN = {"aot": "native", "graph-eager": "native"}
"""Candidates that run a graph's operators as another one does, with more overhead and fewer of them fused."""


def tuner_config(
    settings: Settings, options: CompileOptions, *, is_shared: bool = False, max_late: int = 0, device: str = "cpu"
) -> dict[str, Any]:
    """The configuration of a `_native.Tuner`. is_shared: with others, that may have what this process lacks. max_late:
    steps that may run after one before that one's time is known. device: the type of what trains.
    """
    arms = [_arm(name) for name in enabled(settings, options, is_shared=is_shared, device=device)]
    if settings.backends is None and settings.mode != "deterministic":
        arms = [arm | {"stands_in_for": _STANDS_IN.get(arm["name"], "")} for arm in arms]
    config: dict[str, Any] = {"mode": settings.mode, "arms": arms, "has_spare_cores": _has_spare_cores()}
    if settings.budget_s is not None:
        config["budget_seconds"] = settings.budget_s
    if settings.plan is not None:
        config["pinned_arm"] = pinned = _pinned_plan(settings.plan)
        if pinned not in (EAGER, *(arm["name"] for arm in arms)):
            config["arms"].append(_arm(pinned))
    config["memory_fraction"] = settings.memory_slack
    config["memory_slack_bytes"] = MEMORY_SLACK_BYTES
    config["max_late_steps"] = max_late
    return config


def group_config(settings: Settings, options: CompileOptions) -> dict[str, Any]:
    """The configuration of a `_native.GroupTuner`: the same at all ranks, whatever one of them lacks."""
    return tuner_config(settings, options, is_shared=True) | {"has_spare_cores": False}


def enabled(settings: Settings, options: CompileOptions, *, is_shared: bool = False, device: str = "cpu") -> list[str]:
    """Candidates to try, in order: those of ``backends=`` as given, else all that are on by default and of use.

    is_shared: also those that cannot be used in this process.
    """
    if settings.backends is not None:
        return [name for name in settings.backends if name != EAGER]
    there = [found for found in candidates().values() if device in found.devices]
    of_use = [found for found in there if options.stage_bytes or not found.needs_stages]
    return [found.name for found in of_use if found.default and (is_shared or found.unavailable() is None)]


def _arm(name: str) -> dict[str, Any]:
    background, foreground = _DEFAULT_COMPILE_S.get(name, _OTHER_COMPILE_S)
    return {"name": name, "compile_seconds": background, "foreground_seconds": foreground}


def _has_spare_cores() -> bool:
    """True when a compile leaves the threads that train alone."""
    return len(os.sched_getaffinity(0)) > torch.get_num_threads()


def _pinned_plan(path: Path) -> str:
    """What a report says was chosen, but for the bucket layout: it was chosen with other ranks. Requires: `optimize`
    has checked the report."""
    from agspeed.reporting.model import load

    return plan_of(load(path).to_dict()["decision"]["chosen"])

# SPDX-License-Identifier: Apache-2.0
"""Makes the tuner of a session: translates the user's settings into its configuration (runtime/tune/config.h)."""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from agspeed.backends import CompileOptions, candidates
from agspeed.config import Settings
from agspeed.distributed.layouts import plan_of
from agspeed.regions.plan import EAGER

if TYPE_CHECKING:
    from agspeed._native import GroupTuner, Tuner, TunerArm, TunerConfig
    from agspeed.tuning.steerable import Steerable

_DEFAULT_COMPILE_S = {
    "cudagraph": (5.0, 1.0),
    "inductor": (15.0, 3.0),
    "inductor-cudagraphs": (15.0, 3.0),
    "inductor-max-autotune": (20.0, 3.0),
    "inductor-staged": (20.0, 3.0),
}
MEMORY_SLACK_BYTES = 16 << 20
"""A plan may exceed eager's peak by this many bytes plus the fraction of the peak that ``memory_slack`` allows."""
_OTHER_COMPILE_S = (0.0, 1.0)
_STANDS_IN = {"aot": "native", "graph-eager": "native"}
"""{candidate: a candidate that runs the same operators with less overhead and more fusion}."""


def tuner_config(
    settings: Settings, options: CompileOptions, *, is_shared: bool = False, max_late: int = 0, device: str = "cpu"
) -> TunerConfig:
    """Returns the configuration of a `_native.Tuner`.

    Args:
        is_shared: ranks tune together, and other ranks may have candidates that this process lacks.
        max_late: how many more steps may run before the time of a step is known.
        device: the type of the device that trains.
    """
    names = enabled(settings, options, is_shared=is_shared, device=device)
    may_stand_in = settings.backends is None and settings.mode != "deterministic"
    arms: list[str | TunerArm] = [_arm(name, _STANDS_IN.get(name, "") if may_stand_in else "") for name in names]
    config: TunerConfig = {"mode": settings.mode, "arms": arms, "has_spare_cores": _has_spare_cores()}
    if settings.budget_s is not None:
        config["budget_seconds"] = settings.budget_s
    if (pinned := _pinned_plan(settings)) is not None:
        config["pinned_arm"] = pinned
        if pinned not in (EAGER, *names):
            arms.append(_arm(pinned))
    config["memory_fraction"] = settings.memory_slack
    config["memory_slack_bytes"] = MEMORY_SLACK_BYTES
    config["max_late_steps"] = max_late
    return config


def tuner_of(session: Steerable, module: ModuleType) -> Tuner | GroupTuner:
    """Returns this rank's copy of the group's tuner, or a new tuner if this process tunes alone."""
    if session.rank_sync is not None:
        assert session.rank_sync.tuner is not None  # tuning begins once the ranks have made it
        return session.rank_sync.tuner
    home = session.home
    config = tuner_config(session.settings, session.options, max_late=home.max_late, device=home.device.type)
    tuner: Tuner = module.Tuner(config)
    return tuner


def group_config(settings: Settings, options: CompileOptions) -> TunerConfig:
    """Returns the configuration of a `_native.GroupTuner`: the same at all ranks, even if a rank lacks candidates."""
    return tuner_config(settings, options, is_shared=True) | {"has_spare_cores": False}


def enabled(settings: Settings, options: CompileOptions, *, is_shared: bool = False, device: str = "cpu") -> list[str]:
    """Returns the candidates to try, in order: the value of ``backends=``, else all default candidates that are useful.

    is_shared: include candidates that cannot be used in this process.
    """
    if settings.backends is not None:
        return [name for name in settings.backends if name != EAGER]
    there = [found for found in candidates().values() if device in found.devices]
    of_use = [found for found in there if options.stage_bytes or not found.needs_stages]
    return [found.name for found in of_use if found.default and (is_shared or found.unavailable() is None)]


def _arm(name: str, stands_in_for: str = "") -> TunerArm:
    background, foreground = _DEFAULT_COMPILE_S.get(name, _OTHER_COMPILE_S)
    return {
        "name": name,
        "compile_seconds": background,
        "foreground_seconds": foreground,
        "stands_in_for": stands_in_for,
    }


def _has_spare_cores() -> bool:
    """Returns True if a compile can run on cores that no training thread uses."""
    return len(os.sched_getaffinity(0)) > torch.get_num_threads()


def _pinned_plan(settings: Settings) -> str | None:
    """Returns the plan to replay, without its bucket layout, which ranks choose together; None if there is none.
    Requires: `optimize` has checked the report of `settings.plan`."""
    if settings.plan is None:
        return settings.replayed
    from agspeed.reporting.model import load

    return plan_of(load(settings.plan).to_dict()["decision"]["chosen"])

# SPDX-License-Identifier: Apache-2.0
"""Compiles one candidate for one region and gates it. Used in the training process and in the compile child alike."""

from __future__ import annotations

import copy
import time
import warnings
from typing import Any, Protocol

from torch import fx

from agspeed.backends import CompileOptions, candidate
from agspeed.backends.ambient import AmbientModes
from agspeed.errors import UnsupportedError
from agspeed.log import logger
from agspeed.tuning import gate
from agspeed.tuning.outcome import Outcome


class BuildableRegion(Protocol):
    """What `build` needs of a region."""

    gm: fx.GraphModule
    example_inputs: list[Any]
    modes: AmbientModes
    sample: list[Any] | None
    where: str


def build(name: str, region: BuildableRegion, options: CompileOptions) -> Outcome:
    """Compiles `name` for `region` and checks it against eager on the region's captured inputs. Never raises.

    Returns: an Outcome in state "ready" with a runner, or "skipped", "failed" or "rejected" with the reason.
    """
    chosen = candidate(name)
    reason = chosen.unavailable() or chosen.skip_reason(region.gm, options)
    if reason:
        return Outcome(name, "skipped", reason)
    started = time.perf_counter()
    try:
        with region.modes.restored(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner = chosen.compile(copy.deepcopy(region.gm), region.example_inputs, options)
    except UnsupportedError as error:
        return Outcome(name, "skipped", str(error), compile_seconds=time.perf_counter() - started)
    except (Exception, SystemExit) as error:
        logger.debug("%s could not compile the region at %s", name, region.where, exc_info=True)
        reason = f"compile failed with {type(error).__name__}: {_first_line(error)}"
        return Outcome(name, "failed", reason, compile_seconds=time.perf_counter() - started)
    outcome = Outcome(name, "ready", runner=runner, compile_seconds=time.perf_counter() - started)
    if name != "graph-eager":
        _gate(outcome, region, options)
    return outcome


def _gate(outcome: Outcome, region: BuildableRegion, options: CompileOptions) -> None:
    """Sets `outcome` to "rejected" unless the gate accepts its runner."""
    if region.sample is None:
        outcome.state, outcome.reason = "rejected", "no inputs were captured to check it with"
        return
    assert outcome.runner is not None
    policy = gate.Policy(numerics=options.numerics, memory_budget_bytes=_memory_budget())
    try:
        with region.modes.restored():
            verdict = gate.check(outcome.runner, region.gm, region.sample, policy)
    except (Exception, SystemExit) as error:
        logger.debug("the region at %s cannot be checked", region.where, exc_info=True)
        outcome.state, outcome.runner = "rejected", None
        outcome.reason = f"checking it failed with {type(error).__name__}: {_first_line(error)}"
        return
    outcome.gate_seconds = verdict.seconds
    outcome.gate = verdict.to_dict()
    if not verdict.accepted:
        outcome.state, outcome.reason, outcome.runner = "rejected", verdict.reason, None


def _memory_budget() -> int | None:
    """Bytes the gate's float64 run may take: half of what the machine has free now; None where that is unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    return free * 1024 // 2


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""

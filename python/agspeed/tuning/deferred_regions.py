# SPDX-License-Identifier: Apache-2.0
"""Handles regions captured after the decision: new shapes, unfrozen layers, other branches of the user's code.

A deferred region runs its graph operator by operator until the chosen candidate is ready for it. The candidate is
first compiled, gated and tried in a child process, unless it may be compiled in this process at once. It is then
compiled here (with cache hits), gated, and adopted between two steps. If it crashes, hangs or exits on this graph, it
is excluded for this region alone, with the reason in the report.

mode="max" waits some seconds for the child between two steps. mode="deterministic" waits until the child has finished,
because the choice must not depend on time. Ranks that decided together may capture such graphs at different times, so
this work is spread over several steps: otherwise the collectives of other ranks could time out. All methods run on the
training thread.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

from agspeed.backends import CompileOptions, candidate
from agspeed.config import Settings
from agspeed.distributed.rank_sync import RankSync
from agspeed.regions.outcome import Outcome
from agspeed.regions.region import Region
from agspeed.regions.state import State
from agspeed.tuning.child.queue import CompileQueue
from agspeed.tuning.company import stall_limit

_MAX_GRAPHS = 32
"""Further graphs stay on graph-eager."""
_LONGEST_WAIT_S = {"deterministic": 600.0, "max": 5.0}
"""Seconds to wait for the child, by mode; other modes do not wait."""


class Adopter(Protocol):
    """The attributes and methods of a session that deferred regions use."""

    settings: Settings
    options: CompileOptions
    rank_sync: RankSync | None

    def candidate_for(self, region: Region) -> str: ...
    def compile_part(self, plan: str, region: Region) -> Outcome | None: ...
    def adopt_region(self, region: Region) -> None: ...


class DeferredRegions:
    """The deferred regions of one session."""

    def __init__(self, session: Adopter) -> None:
        self._session = session
        self._compile_queue = CompileQueue(lambda: session.options, session.settings)
        self._stall_limit = stall_limit(session.settings, session.rank_sync)
        self._seen: set[Region] = set()
        self._graphs: set[str] = set()
        self._new: list[Region] = []
        self._compiling: list[Region] = []
        self._compiled: list[Region] = []

    def add(self, region: Region) -> None:
        """Adds a region that was called and has no outcome for the chosen plan. Repeated calls change nothing."""
        if region not in self._seen:
            self._seen.add(region)
            self._graphs.add(region.key)
            self._new.append(region)

    @property
    def is_idle(self) -> bool:
        """True when no deferred region waits for anything."""
        return not self._new and not self._compiling and not self._compiled

    def advance(self) -> None:
        """Starts compiling new regions and adopts regions that are ready. Called when a training step has ended."""
        if self.is_idle:
            return
        new, self._new = self._new, []
        for region in new:
            self._start(region)
        for region in self._finished():
            self._compiling.remove(region)
            self._compiled.append(region)
        self._adopt_compiled()
        if not self._compiling:
            self._compile_queue.close()

    def wait(self, timeout_s: float | None) -> None:
        """Waits for the child. Regions that it finished are adopted when the next step ends."""
        self._compile_queue.wait(timeout_s)

    def close(self) -> None:
        """Ends background work. Regions that are not ready stay on graph-eager."""
        self._new.clear()
        self._compiling.clear()
        self._compiled.clear()
        self._compile_queue.close()

    def _start(self, region: Region) -> None:
        name = self._session.candidate_for(region)
        if len(self._graphs) > _MAX_GRAPHS:
            region.outcomes[name] = Outcome(name, State.SKIPPED, "too many different graphs were captured")
        elif not candidate(name).in_process and self._compile_queue.start(str(region.index), [(region, name)], "idle"):
            self._compiling.append(region)
            return
        self._compiled.append(region)

    def _finished(self) -> list[Region]:
        """Returns the regions that the child has finished, successfully or not."""
        mode = self._session.settings.mode
        if mode in _LONGEST_WAIT_S:
            self._compile_queue.wait(min(_LONGEST_WAIT_S[mode], self._longest_stop_s))
        finished = [region for batch in self._compile_queue.poll() for region, _ in batch.jobs]
        if mode == "deterministic" and not self._compile_queue.is_idle:
            self._compile_queue.give_up(f"it was not ready after {_LONGEST_WAIT_S[mode]:.0f} s")
            return list(self._compiling)
        return finished

    def _adopt_compiled(self) -> None:
        """Compiles in this process the regions that the child has finished, and adopts them. Stops when the time for
        one pause between steps is used up and continues after the next step.
        """
        started = time.perf_counter()
        while self._compiled and time.perf_counter() - started < self._longest_stop_s:
            region, begun = self._compiled[0], time.perf_counter()
            name = self._session.candidate_for(region)
            is_through = self._session.compile_part(name, region) is not None
            seconds = time.perf_counter() - begun
            too_slow = self._stall_limit.why_too_slow(seconds) if self._stall_limit is not None else None
            if too_slow and not is_through:
                region.unfinished.pop(name, None)
                region.outcomes[name] = Outcome(name, State.SKIPPED, too_slow)
            if too_slow or is_through:
                self._compiled.pop(0)
                self._session.adopt_region(region)

    @property
    def _longest_stop_s(self) -> float:
        return self._stall_limit.longest_wait_s if self._stall_limit is not None else math.inf

# SPDX-License-Identifier: Apache-2.0
"""Queues compiles for the child process and records their results in the regions.

A *batch* holds the jobs of one plan, one per region. A successful job leaves the region without an outcome: the
candidate is then compiled again in the training process, where it hits the caches that the child filled. Any other
result becomes the region's outcome. Training thread only; the queue owns the child, which starts with the first job.

Ranks of one host share compiles (`host_compiles.py`): this rank waits for a job that another rank's child compiles.

A graph that cannot be sent to the child is compiled in the training process only in mode="max", in which the user waits
for tuning, and only if the expected time is within the budget.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO

from torch import fx

from agspeed.backends import CompileOptions, candidate, vector_isa
from agspeed.config import Settings
from agspeed.devices.accelerator import accelerator_of
from agspeed.devices.placement import home_of, tensors_in
from agspeed.errors import UnsupportedError
from agspeed.log import logger, warn_once
from agspeed.private_folder import sweep
from agspeed.regions.outcome import Outcome
from agspeed.regions.proof import Proof
from agspeed.regions.region import Region
from agspeed.regions.state import State
from agspeed.tuning.child.host_compiles import Claim, HostCompiles
from agspeed.tuning.child.job import write_region
from agspeed.tuning.child.process import Child, Job

_FIRST_COMPILE_S, _NODE_S = 15.0, 0.3
"""A high estimate of the seconds that a candidate takes to compile on one core: per graph, and per node of it."""
_COPIES = 8
"""The gate may need this many times the bytes of a region's inputs at once, with copies that are twice as wide."""


@dataclass(eq=False)
class Batch:
    """Jobs that were started together; `name` is the plan that needs them."""

    name: str
    jobs: list[tuple[Region, Job]]

    @property
    def done(self) -> bool:
        return all(job.done for _, job in self.jobs)

    @property
    def seconds(self) -> float:
        """The seconds that the child spent compiling."""
        answers = [job.answer for _, job in self.jobs if job.answer is not None]
        return sum(answer.get("compile_seconds", 0.0) for answer in answers)


class CompileQueue:
    """The compile queue of one session; see the module docstring."""

    def __init__(
        self, options: Callable[[], CompileOptions], settings: Settings, host: HostCompiles | None = None
    ) -> None:
        """host: shares compiles with ranks that all start the same jobs; None: this rank compiles everything."""
        self._options, self._host = options, host
        waits = settings.mode == "max"
        self._seconds_here = (math.inf if settings.budget_s is None else settings.budget_s) if waits else 0.0
        self._child: Child | None = None
        self._files: dict[int, BinaryIO] = {}
        """{region index: its file for the child}."""
        self._batches: list[Batch] = []
        self._shared: list[tuple[Job, Claim]] = []
        """Unanswered jobs that this rank shares with other ranks."""
        self._passed: set[tuple[int, str]] = set()
        sweep()

    @property
    def is_idle(self) -> bool:
        return not self._batches

    def prepare(self) -> None:
        """Starts the child at normal priority, because the user waits for its first job."""
        if self._host is not None and not self._host.is_first:
            return
        with contextlib.suppress(OSError):  # the first job meets the same error and reports it
            self._child = self._child or Child(self._options().cache_dir)
            self._child.set_level("raised")
            self._child.start()

    def start(self, name: str, wanted: Iterable[tuple[Region, str]], level: str) -> Batch | None:
        """Starts compiling each region with its candidate at `level` (see `Child.set_level`).

        Skips regions that have an outcome or that the child has finished. A region that the child cannot take gets its
        outcome at once, unless it is to be compiled in this process. Returns: None if the child has nothing to do.
        """
        new = [(region, wish) for region, wish in wanted if self.lacks(region, wish)]
        jobs = [(region, job) for region, wish in new if (job := self._make_job(region, wish)) is not None]
        if not jobs:
            return None
        assert self._child is not None
        batch = Batch(name, jobs)
        self._batches.append(batch)
        self._child.set_level(level)
        for region, job in jobs:
            claim = self._host.claim(region.key, job.candidate, job.options) if self._host is not None else None
            if claim is not None:
                self._shared.append((job, claim))
            else:
                self._child.submit(job)
        self._look_around()
        return batch

    def lacks(self, region: Region, name: str) -> bool:
        """Returns True if candidate `name` has neither an outcome nor a successful child's answer for `region`."""
        return name not in region.outcomes and (region.index, name) not in self._passed

    def poll(self) -> list[Batch]:
        """Handles the child's answers. Returns: the batches that finished since the last call."""
        if self._child is None:
            return []
        self._child.poll()
        self._look_around()
        finished = [batch for batch in self._batches if batch.done]
        self._batches = [batch for batch in self._batches if not batch.done]
        for batch in finished:
            for region, job in batch.jobs:
                self._take_answer(region, job)
        return finished

    def is_running(self, name: str) -> bool:
        return any(batch.name == name for batch in self._batches)

    def wait(self, timeout_s: float | None, name: str | None = None) -> None:
        """Blocks until the jobs of plan `name` (None: of all plans) are done or the time is over."""
        jobs = [job for batch in self._batches if name in (None, batch.name) for _, job in batch.jobs]
        if self._child is not None:
            self._child.wait(jobs, timeout_s, self._look_around)

    def set_level(self, level: str) -> None:
        if self._child is not None:
            self._child.set_level(level)

    def give_up(self, reason: str) -> None:
        """Ends all unfinished jobs: their regions fail with `reason`."""
        for batch in self._batches:
            for region, job in batch.jobs:
                job.answer = job.answer or {"state": State.FAILED, "reason": reason}
                self._take_answer(region, job)
        self.close()

    def close(self) -> None:
        """Drops all jobs and ends the child, which starts again with the next job."""
        self._batches.clear()
        self._shared.clear()
        if self._host is not None:
            self._host.close()
        if self._child is not None:
            self._child.close()
            self._child = None
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _make_job(self, region: Region, name: str) -> Job | None:
        """Returns a job for the child; None if the region got its outcome or is to be compiled in this process."""
        reason = candidate(name).unavailable() or candidate(name).skip_reason(region.gm, self._options())
        if reason is not None:
            region.outcomes[name] = Outcome(name, State.SKIPPED, reason)
            return None
        if (reason := _why_no_child(region)) is not None:
            self._stay_here(region, name, f"no process beside this one may try it: {reason}")
            return None
        try:
            self._child = self._child or Child(self._options().cache_dir)
            if region.index not in self._files:
                self._files[region.index] = write_region(region, self._child.folder.path)
            return Job(name, self._files[region.index], self._options())
        except UnsupportedError as error:
            self._stay_here(region, name, f"the graph cannot be handed to a child process: {error}")
        except Exception as error:
            logger.debug("the region at %s cannot be written", region.where, exc_info=True)
            what = "there is no room to hand the graph to a child process"
            if not isinstance(error, OSError | RuntimeError):
                what = "handing the graph to a child process failed"
            region.outcomes[name] = Outcome(name, State.FAILED, f"{what}: {type(error).__name__}: {error}")
        return None

    def _look_around(self) -> None:
        """Takes over the answers of other ranks' children, publishes this child's answers, and submits the jobs of
        ranks that have ended.
        """
        assert self._child is not None
        for entry in list(self._shared):
            job, claim = entry
            was_mine = claim.is_mine
            job.answer = job.answer if was_mine else claim.look()
            if claim.is_mine and not was_mine:
                self._child.submit(job)
            if job.answer is not None:
                self._shared.remove(entry)
                if claim.is_mine:
                    claim.tell(job.answer)

    def _stay_here(self, region: Region, name: str, reason: str) -> None:
        """Handles a region that cannot go to the child for `reason`: this process compiles it if that is expected to
        fit the budget; otherwise the candidate is skipped."""
        graphs = [part.graph for part in region.gm.modules() if isinstance(part, fx.GraphModule)]
        seconds = _FIRST_COMPILE_S + _NODE_S * sum(len(graph.nodes) for graph in graphs)
        if seconds > self._seconds_here:
            region.outcomes[name] = Outcome(name, State.SKIPPED, reason)
            return
        self._passed.add((region.index, name))
        warn_once(
            ("compiled here", region.key, name),
            f"{name} compiles region {region.index} ({region.where}) in the training process, which stands still for "
            f"about {seconds:.0f} s: {reason}",
        )

    def _take_answer(self, region: Region, job: Job) -> None:
        answer, name = job.answer, job.candidate
        assert answer is not None  # the job is done
        vector_isa.adopt(answer.get("vector_isa", {}))
        if answer["state"] != State.READY:
            region.outcomes[name] = Outcome(name, State(answer["state"]), answer["reason"], gate=answer.get("gate", {}))
        elif twin := _same_code(region, name, answer.get("code_digest")):
            region.outcomes[name] = Outcome(name, State.SKIPPED, f"generates the same code as {twin}")
        else:
            self._passed.add((region.index, name))
            if (proof := answer.get("proof")) is not None:
                region.proofs[name] = Proof.from_json(proof)
            for twin in answer.get("twins", ()):
                if self.lacks(region, twin):
                    region.outcomes[twin] = Outcome(twin, State.SKIPPED, f"generates the same code as {name}")


def _why_no_child(region: Region) -> str | None:
    """Returns why the region's device has no room for a second process, or None."""
    tensors = list(tensors_in(region.sample or region.example_inputs))
    accelerator = accelerator_of(home_of(tensors))
    if accelerator is None:
        return None
    return accelerator.why_no_child(_COPIES * sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def _same_code(region: Region, name: str, digest: str | None) -> str | None:
    """Returns another candidate that has already generated the same code for this region, or None."""
    if digest is None:
        return None
    twin: str | None = region.code_digests.setdefault(digest, name)
    return twin if twin != name else None

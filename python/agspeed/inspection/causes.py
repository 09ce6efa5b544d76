# SPDX-License-Identifier: Apache-2.0
"""Compares what the ranks of a job say, and names the likely cause of a hang.

A rank waits for another rank if the other one has not started an operation that the first one is in. A rank that
others wait for, and that waits for none of them, is the cause. Ranks that wait for each other in a circle start their
operations in different orders. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agspeed.inspection import model
from agspeed.inspection.points import Answer
from agspeed.inspection.processes import Process
from agspeed.reporting import format as fmt

__all__ = ["Job", "causes"]

_DATA_LOADER = "/torch/utils/data/"


@dataclass(frozen=True)
class Job:
    """The ranks of one job on this host, by rank."""

    name: str
    """Empty: its ranks have not agreed on one yet."""
    world_size: int
    answers: Mapping[int, Answer]
    processes: Mapping[int, Process]

    @property
    def ranks(self) -> dict[int, model.Rank]:
        """Returns the answers of the ranks that can be used."""
        return {number: answer.rank for number, answer in self.answers.items() if answer.rank is not None}


@dataclass(frozen=True)
class _Wait:
    """One rank waits for another, which has not started the operation."""

    waiting: int
    awaited: int
    group: model.Group
    operation: model.Operation


def causes(job: Job) -> list[str]:
    """Returns sentences about the likely cause; the first one matters most. No sentence: nothing is in flight."""
    found = [*_stopped(job), *_missing(job), *_ended_groups(job), *_different_calls(job), *_unreached(job)]
    if not found:
        waits = list(_waits(job))
        found = [*_circle(waits), *_behind(job, waits)] or [*_unanswered(job), *_moving(job)]
    return found


# --- causes that one rank shows ---------------------------------------------------------------------------------------


def _stopped(job: Job) -> Iterator[str]:
    for number, process in sorted(job.processes.items()):
        if process.is_stopped:
            yield f"Rank {number} {process.doing} (process {process.pid}): `kill -CONT {process.pid}` continues it."


def _missing(job: Job) -> Iterator[str]:
    joining = [rank for rank in job.ranks.values() if rank.state == "joining"]
    if not joining:
        return
    missing = [number for number in range(job.world_size) if number not in job.answers]
    if missing:
        longest = fmt.seconds(max(rank.seconds for rank in joining))
        yield (
            f"{_named(missing)} of {job.world_size} {_has(missing)} not joined the job for {longest}, and no process "
            f"of this host is {_it(missing)}: look at the output of that rank, or at its host."
        )


def _ended_groups(job: Job) -> Iterator[str]:
    failures = {group.failure: group.name for rank in job.ranks.values() for group in rank.groups if group.failure}
    for failure, group in failures.items():
        yield f"Group '{group}' has ended: {failure}."


def _different_calls(job: Job) -> Iterator[str]:
    seen: dict[tuple[str, tuple[int, ...], int], tuple[int, str]] = {}
    for number, rank in sorted(job.ranks.items()):
        for group in rank.groups:
            for operation in group.operations:
                if operation.sequence is None:
                    continue
                first, call = seen.setdefault((group.name, group.ranks, operation.sequence), (number, operation.call))
                if call != operation.call:
                    yield (
                        f"Rank {number} calls {operation.call} as operation {operation.sequence} of group "
                        f"'{group.name}', and rank {first} calls {call}: all ranks must make the same calls."
                    )


def _unreached(job: Job) -> Iterator[str]:
    for number, rank in sorted(job.ranks.items()):
        for peer in rank.peers:
            if peer.shares_memory or not peer.routes or peer.unreached_s == 0:
                continue
            reason = f": {peer.failure}" if peer.failure else ""
            since = fmt.seconds(peer.unreached_s)
            yield f"No rail has led from rank {number} to rank {peer.rank} for {since}{reason}."


# --- causes that only a comparison shows ------------------------------------------------------------------------------


def _waits(job: Job) -> Iterator[_Wait]:
    for number, rank in sorted(job.ranks.items()):
        for group in rank.groups:
            for operation in group.operations:
                for awaited in _awaited(job, group, operation):
                    if awaited != number and not _has_started(job, awaited, number, group, operation):
                        yield _Wait(number, awaited, group, operation)


def _awaited(job: Job, group: model.Group, operation: model.Operation) -> tuple[int, ...]:
    """Returns the ranks that have not started an operation. Its rank knows only the coordinator if the operation has a
    name; the coordinator knows more."""
    coordinator = job.ranks.get(group.ranks[0]) if operation.name and group.ranks else None
    for known in filter(lambda each: _are_same(each, group), coordinator.groups if coordinator is not None else ()):
        for other in (*known.operations, *known.not_started):
            if other.name == operation.name:
                return other.awaited
    return operation.awaited


def _has_started(job: Job, number: int, waiting: int, group: model.Group, operation: model.Operation) -> bool:
    rank = job.ranks.get(number)
    own = None if rank is None else next((each for each in rank.groups if _are_same(each, group)), None)
    if own is None:
        return False
    if operation.sequence is not None:
        return operation.sequence <= own.num_calls
    if operation.name:
        return any(other.name == operation.name for other in own.operations)
    return any(other.sequence is None and waiting in other.awaited for other in own.operations)


def _are_same(left: model.Group, right: model.Group) -> bool:
    """Whether two ranks describe the same group."""
    return (left.name, left.is_named, left.ranks) == (right.name, right.is_named, right.ranks)


def _circle(waits: list[_Wait]) -> Iterator[str]:
    """Describes the first circle of ranks that wait for each other."""
    by_rank: dict[int, list[_Wait]] = {}
    for wait in waits:
        by_rank.setdefault(wait.waiting, []).append(wait)
    for start in by_rank:
        path = _path(start, start, by_rank, set())
        if path:
            steps = "; ".join(
                f"rank {wait.waiting} is in {_where(wait)} and waits for rank {wait.awaited}" for wait in path
            )
            yield f"The ranks start their operations in different orders: {steps}."
            return


def _path(start: int, end: int, by_rank: Mapping[int, list[_Wait]], seen: set[int]) -> list[_Wait]:
    """Returns the waits that lead from one rank to another; empty: none do."""
    seen.add(start)
    for wait in by_rank.get(start, ()):
        if wait.awaited == end:
            return [wait]
        if wait.awaited not in seen:
            rest = _path(wait.awaited, end, by_rank, seen)
            if rest:
                return [wait, *rest]
    return []


def _behind(job: Job, waits: list[_Wait]) -> Iterator[str]:
    """Describes the ranks that others wait for and that wait for no other rank."""
    waiting = {wait.waiting for wait in waits}
    for number in sorted({wait.awaited for wait in waits} - waiting):
        own = [wait for wait in waits if wait.awaited == number]
        first = max(own, key=lambda wait: wait.operation.seconds)
        waiters = sorted({wait.waiting for wait in own if _where(wait) == _where(first)})
        verb = "has waited" if len(waiters) == 1 else "have waited"
        yield (
            f"Rank {number} has not started {_where(first)}, and {_named(waiters, is_start=False)} {verb} for it for "
            f"{fmt.seconds(first.operation.seconds)}. {_elsewhere(job, number)}"
        )


def _elsewhere(job: Job, number: int) -> str:
    """Says what a rank does instead."""
    answer, process = job.answers.get(number), job.processes.get(number)
    if answer is None:
        return "It has no process on this host: it runs on another host, or it has ended."
    if answer.rank is None:
        return f"Its process {answer.point.process} {answer.problem}."
    in_flight = [operation for group in answer.rank.groups for operation in group.operations]
    doing = f"its main thread {process.doing}" if process is not None else "its process has ended"
    stack = answer.rank.stack
    if stack:
        doing += f" at {stack[0]}"
    if any(_DATA_LOADER in line for line in stack):
        return f"It is in its data loader: {doing}."
    if in_flight:
        return f"It is in {in_flight[0].label} meanwhile; {doing}."
    return f"It has no operation in flight: {doing}."


def _unanswered(job: Job) -> Iterator[str]:
    for number, answer in sorted(job.answers.items()):
        if answer.rank is None:
            yield f"Rank {number} (process {answer.point.process}) {answer.problem}."
        elif answer.rank.state == "busy":
            yield f"The engine of rank {number} has not answered for a second: it computes, or a callback holds it."


def _moving(job: Job) -> Iterator[str]:
    """Describes the oldest operation that all ranks are in."""
    in_flight = [
        (operation.seconds, number, group, operation)
        for number, rank in job.ranks.items()
        for group in rank.groups
        for operation in group.operations
    ]
    if not in_flight:
        return
    _, number, group, operation = max(in_flight, key=lambda each: each[0])
    moved = f"{fmt.size(operation.num_moved)} of {fmt.size(operation.num_bytes)}"
    yield (
        f"All ranks that answered are in {operation.label} of group '{group.name}', and rank {number} has moved "
        f"{moved}: inspect again to see whether it goes on. If it does, the network or a rank is slow."
    )


# --- words ------------------------------------------------------------------------------------------------------------


def _where(wait: _Wait) -> str:
    return f"{wait.operation.label} of group '{wait.group.name}'"


def _named(ranks: list[int], is_start: bool = True) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    text = ", ".join(map(str, ranks[:8])) + (" and more" if len(ranks) > 8 else "")
    return f"{word.capitalize() if is_start else word} {text}"


def _has(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _it(ranks: list[int]) -> str:
    return "that rank" if len(ranks) == 1 else "one of them"

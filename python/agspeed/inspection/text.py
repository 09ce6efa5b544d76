# SPDX-License-Identifier: Apache-2.0
"""Describes the ranks of a job as lines for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agspeed.inspection import model
from agspeed.inspection.causes import Job, causes
from agspeed.reporting import format as fmt

__all__ = ["lines"]

_LONGEST_COMMAND = 80
_MOST_FRAMES = 4


def lines(job: Job) -> Iterator[str]:
    """Yields the lines about a job: its ranks, and the likely cause last."""
    name = f"Job {job.name}" if job.name else "A job whose ranks have not met yet"
    yield f"{name}: {len(job.answers)} of {job.world_size} ranks are on this host."
    for number in sorted(job.answers):
        yield from _rank(job, number)
    found = causes(job)
    if not found:
        yield "No rank has an operation in flight: the ranks are outside of agspeed."
    for index, sentence in enumerate(found):
        yield f"{'Likely cause' if index == 0 else 'Also'}: {sentence}"


def _rank(job: Job, number: int) -> Iterator[str]:
    answer, process = job.answers[number], job.processes.get(number)
    doing = process.doing if process is not None else "has ended"
    command = f": {process.command[:_LONGEST_COMMAND]}" if process is not None and process.command else ""
    yield f"rank {number}, process {answer.point.process}, {doing}{command}"
    rank = answer.rank
    if rank is None:
        yield f"  It {answer.problem}."
        return
    if rank.state == "joining":
        yield f"  It has waited for the other ranks to join for {fmt.seconds(rank.seconds)}."
        return
    if rank.state == "busy":
        yield "  Its engine has not answered for a second."
        return
    for group in rank.groups:
        yield from _group(group)
    if not any(group.operations for group in rank.groups):
        yield f"  It has no operation in flight{_last(rank.last_finished)}."
    if rank.stack:
        yield f"  at {'; '.join(rank.stack[:_MOST_FRAMES])}"
    for peer in rank.peers:
        yield f"  to rank {peer.rank}: {_route(rank, peer)}"
    for rail in rank.rails:
        yield f"  {_rail(rail)}"


def _group(group: model.Group) -> Iterator[str]:
    if group.failure:
        yield f"  group '{group.name}' has ended: {group.failure}"
    for operation in group.operations:
        yield f"  group '{group.name}', {operation.label}: {_progress(operation)}"
    left = group.num_operations - len(group.operations)
    if left > 0:
        yield f"  group '{group.name}': {fmt.plural(left, 'more operation')} in flight"
    for operation in group.not_started:
        since = fmt.seconds(operation.seconds)
        yield f"  group '{group.name}', '{operation.name}': other ranks have waited for it for {since}"


def _progress(operation: model.Operation) -> str:
    parts = [f"in flight for {fmt.seconds(operation.seconds)}"]
    if operation.blocked_by:
        parts.append(f"not started to move, because {operation.blocked_by}")
    if operation.awaited:
        word = "rank" if len(operation.awaited) == 1 else "ranks"
        parts.append(f"waits for {word} {', '.join(map(str, operation.awaited))}")
    if operation.num_bytes:
        parts.append(f"{fmt.size(operation.num_moved)} of {fmt.size(operation.num_bytes)} moved")
    return "; ".join(parts)


def _last(last: model.Finished | None) -> str:
    if last is None:
        return ""
    return f"; {last.call} of group '{last.group}' ended {fmt.seconds(last.seconds)} ago"


def _route(rank: model.Rank, peer: model.Peer) -> str:
    parts = ["shared memory"] if peer.shares_memory else []
    if not peer.shares_memory:
        for rail, route in zip(rank.rails, peer.routes, strict=False):
            state = "up" if route.is_up else "down"
            in_flight = f", {fmt.size(route.bytes_in_flight)} in flight" if route.bytes_in_flight else ""
            parts.append(f"{rail.interface or rail.address} {state}{in_flight}")
    if peer.silent_s >= 1:
        parts.append(f"silent for {fmt.seconds(peer.silent_s)}")
    if peer.unreached_s > 0:
        parts.append(f"not reached for {fmt.seconds(peer.unreached_s)}")
    if peer.failure:
        parts.append(f"last failure: {peer.failure}")
    return "; ".join(parts) or "not connected"


def _rail(rail: model.Rail) -> str:
    rate = f"{8e-6 * rail.bytes_per_second:,.0f} Mbit/s" if rail.bytes_per_second else "rate not known"
    link = "" if rail.is_link_up else "no link, "
    return (
        f"rail {rail.interface} {rail.address}: {link}{rate}, {fmt.size(rail.bytes_sent)} sent, "
        f"{fmt.size(rail.bytes_received)} received, {fmt.plural(rail.failovers, 'failover')}, "
        f"{fmt.plural(rail.stalls, 'stall')}"
    )

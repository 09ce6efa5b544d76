# SPDX-License-Identifier: Apache-2.0
"""The sides of a case in one network. They are started together, run in turn and ended together.

A side that fails is left out with its reason, and the others go on. The case ends only if agspeed itself fails.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeVar

from agspeed import netbed
from benchmarks.comm import sides
from benchmarks.comm.blocks import Block
from benchmarks.comm.team import Team

T = TypeVar("T")
K = TypeVar("K")
B = TypeVar("B", bound=Block)
_LEAST_PASSES = 2  # one there, one back


class Contest:
    """`teams` holds the sides that still take part, `failed` the reason why each other side does not. `opened` owns
    it."""

    def __init__(self, bed: netbed.Netbed) -> None:
        self.bed = bed
        self.teams: dict[str, Team] = {}
        self.failed: dict[str, str] = {}

    def attempt(self, name: str, action: Callable[[], T]) -> T | None:
        """Returns the action's result. If the action fails, ends the side and returns None; agspeed's failures are
        raised."""
        try:
            return action()
        except (RuntimeError, OSError, netbed.NetbedError) as error:
            if team := self.teams.pop(name, None):
                team.close()
            if name == sides.OURS:
                raise
            self.failed[name] = str(error).strip()
            return None

    def rotate(self, actions: Mapping[str, Callable[[], Block]], seconds: float) -> dict[str, list[Block]]:
        """Runs blocks of all sides in turn, there and back, until `seconds` have passed: the same number for each
        side."""
        blocks: dict[str, list[Block]] = {name: [] for name in actions}
        order, deadline, passes = list(actions), time.monotonic() + seconds, 0
        while passes < _LEAST_PASSES or time.monotonic() < deadline:
            for name in order:
                if (block := self.attempt(name, actions[name])) is not None:
                    blocks[name].append(block)
            order = [name for name in reversed(order) if name in self.teams]
            passes += 1
        return {name: found for name, found in blocks.items() if name in self.teams}

    def take_turns(self, actions: Mapping[K, Callable[[], B]], seconds: float) -> dict[K, list[B]]:
        """Like `rotate`, for several actions per side. An action that fails ends the case."""
        blocks: dict[K, list[B]] = {key: [] for key in actions}
        deadline = time.monotonic() + seconds
        while not all(blocks.values()) or time.monotonic() < deadline:
            for key in [*actions, *reversed(actions)]:
                blocks[key].append(actions[key]())
        return blocks

    def sent_per_rail(self, action: Callable[[], Block]) -> tuple[Block, list[int]]:
        """Returns a block, and the bytes that all hosts together sent on each rail during it, headers included."""
        before = self.bed.counters()
        block = action()
        after = self.bed.counters()
        hosts = [
            [now.since(then).sent_bytes for now, then in zip(*host, strict=True)]
            for host in zip(after, before, strict=True)
        ]
        return block, [sum(rail) for rail in zip(*hosts, strict=True)]


@contextmanager
def opened(bed: netbed.Netbed, names: Sequence[str], ranks_per_host: int = 1) -> Iterator[Contest]:
    """Yields the named sides, connected. They end when the context does."""
    contest, chosen = Contest(bed), [sides.find(name) for name in names]
    needs_mptcp = any(side.over_mptcp for side in chosen)
    with netbed.mptcp(bed) if needs_mptcp else nullcontext({}) as over_mptcp:
        try:
            key = sides.job_key()
            for side in chosen:
                environment = {**key, **(over_mptcp if side.over_mptcp else {})}
                contest.teams[side.name] = Team(bed, side, environment, ranks_per_host)
            for name in names:
                contest.attempt(name, contest.teams[name].wait_until_ready)
            yield contest
        finally:
            for team in contest.teams.values():
                team.close()

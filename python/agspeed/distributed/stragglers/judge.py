# SPDX-License-Identifier: Apache-2.0
"""Judge: finds from the windows of all ranks which rank holds the others up, and why.

Each round, the judge gets one window of every rank. For each kind it computes an *excess*, a share:

    compute   how much longer a rank computes than the usual rank, beyond the part that is its host's
    host      how much longer the quickest of a host's ranks computes than the usual rank
    input     the part of a step that a rank waits for its input, beyond the usual rank's
    rail      the part of its own best rate that a rail has lost, beyond the usual rail's loss

The usual rank is the lower median, so the quicker one of two ranks is the usual one. A host with one rank has no excess
of its own, and neither has a job on one host. If a host is slow, its ranks may wait longer for input by the same share.

A finding begins once the excess was high in several rounds in a row, and clearly above the noise, which the judge
measures from the changes between rounds. It ends once the excess was low in several rounds in a row. A single rank that
computes longer while its host withholds processor time is a finding of the kind "host", too.

A rank that holds the others up makes them wait. So an excess of time counts only if another rank waits longer, by at
least half of it.

It is a pure computation: no torch, no sockets, no clock. One thread at a time.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from agspeed.distributed.stragglers.windows import Window

Kind = Literal["compute", "host", "input", "rail"]
KINDS: tuple[str, ...] = get_args(Kind)

_BEGINS = {"compute": 0.10, "host": 0.10, "input": 0.10, "rail": 0.25}
"""The least excess of a finding. It ends below half of that."""
_ROUNDS = 6
"""Rounds in a row before a finding begins or ends."""
_KEPT_ROUNDS = 16
_NOISE_ROUNDS = 64
_SIGMAS = 5.0
_LEAST_NOISE = 0.005
_OF_MEDIAN = 1.25
"""Standard deviation of a median over that of a mean, for a normal distribution."""
_NORMAL = 0.6745
"""Median of the absolute value of a standard normal variable."""
_LEAST_SHARE_OF_STEP = 0.03
"""A rank that computes longer by a smaller part of the step holds up nothing of note."""
_MADE_WAIT = 0.5
"""The part of an excess that another rank must wait longer."""
_FROM_HOST = 0.5
"""The part of an excess that missing processor time must explain."""
_BLOCK = 16
"""Rounds whose median rate counts as one rate that a rail has shown."""
_KEPT_BLOCKS = 64
_MOST_ENDED = 32


@dataclass(frozen=True)
class Finding:
    """A rank that holds the others up, or all ranks of a host.

    `share` is, by kind: how much longer the rank computes (compute, host); the part of a step in which it waits for its
    input (input); the part of its own rate that the rail still carries (rail).
    """

    kind: Kind
    rank: int
    host: str
    share: float
    since_step: int
    rail: str = ""
    until_step: int | None = None
    """None while it lasts."""
    num_ranks: int = 1
    """More than one if all ranks of the host compute longer; `rank` is the first of them."""
    is_starved: bool = False
    """Whether the rank computes longer because its host withholds processor time."""


@dataclass
class _BestRate:
    """The best rate that a rail has shown in about the last thousand rounds. Single high values do not count."""

    blocks: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_BLOCKS))
    block: list[float] = field(default_factory=list)

    def add(self, rate: float) -> float:
        """Adds a round's rate, and returns the best one."""
        self.block.append(rate)
        if len(self.block) == _BLOCK:
            self.blocks.append(statistics.median(self.block))
            self.block.clear()
        return max(self.blocks, default=0.0) or statistics.median(self.block)


@dataclass
class _Track:
    """The latest rounds of one rank and kind, or of one rail."""

    raw: deque[float] = field(default_factory=lambda: deque(maxlen=_NOISE_ROUNDS))
    """Excesses of either sign, whether they hold up other ranks or not. They show the noise."""
    excesses: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))
    starved: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))
    finding: Finding | None = None

    def add(self, raw: float, excess: float, share: float, step: int, starved: float = 0.0) -> None:
        self.raw.append(raw)
        self.excesses.append(excess)
        self.shares.append(share)
        self.steps.append(step)
        self.starved.append(starved)

    def changes(self) -> list[float]:
        """Returns how much the excess changed from round to round."""
        return [abs(after - before) for before, after in pairwise(self.raw)]

    def num_latest_above(self, limit: float) -> int:
        """Returns how many of the latest rounds in a row had an excess above `limit`."""
        return next((n for n, excess in enumerate(reversed(self.excesses)) if excess <= limit), len(self.excesses))

    def latest(self, values: deque[float], num: int) -> float:
        """Returns the median of the latest `num` values."""
        return statistics.median(list(values)[-num:])


class Judge:
    """The judge of one group of ranks (see the module's docstring)."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self.ended: deque[Finding] = deque(maxlen=_MOST_ENDED)
        """The latest findings that have ended, the last one last."""
        self._tracks: dict[tuple[str, int, str], _Track] = {}
        self._best: dict[tuple[int, str], _BestRate] = {}

    @property
    def findings(self) -> list[Finding]:
        """The findings that last, by kind and rank."""
        return [track.finding for _, track in sorted(self._tracks.items()) if track.finding is not None]

    def add(self, windows: Sequence[Window]) -> list[Finding]:
        """Judges a round: one new window of each rank, by rank. Returns the findings that have begun or ended."""
        if len(windows) < 2 or any(window.is_tuning for window in windows):
            return []
        self.num_rounds += 1
        of_hosts = self._add_hosts(windows)
        self._add_compute(windows, of_hosts)
        self._add_input(windows, of_hosts)
        self._add_rails(windows)
        changes = []
        for key, track in sorted(self._tracks.items()):
            if track.finding is None:
                changes.append(self._begun(key, track, windows))
            else:
                changes.append(self._renewed(key, track, windows[0].step))
        return [change for change in changes if change is not None]

    # --- excesses -----------------------------------------------------------------------------------------------------

    def _add_hosts(self, windows: Sequence[Window]) -> dict[str, float]:
        """Returns the excess of the hosts that have one."""
        ranks_of: dict[str, list[int]] = {}
        for rank, window in enumerate(windows):
            ranks_of.setdefault(window.host, []).append(rank)
        if len(ranks_of) < 2:
            return {}
        quickest = [min(ranks, key=lambda rank: windows[rank].compute_s) for ranks in ranks_of.values()]
        others = _medians_of_others([windows[rank].compute_s for rank in quickest])
        usual, starved = _usual_compute(windows)
        found = {}
        for (host, ranks), rank, of_others in zip(ranks_of.items(), quickest, others, strict=True):
            if len(ranks) < 2:
                continue
            window = windows[rank]
            excess = _compute_excess(window.compute_s - usual, usual, window, windows)
            raw = window.compute_s / of_others - 1 if of_others > 0 else 0.0
            own = max(min(windows[each].starved for each in ranks) - starved, 0.0)
            self._track("host", ranks[0]).add(raw, excess, excess, windows[0].step, own)
            found[host] = excess
        return found

    def _add_compute(self, windows: Sequence[Window], of_hosts: Mapping[str, float]) -> None:
        others = _medians_of_others([window.compute_s for window in windows])
        usual, usual_starved = _usual_compute(windows)
        for rank, (window, of_others) in enumerate(zip(windows, others, strict=True)):
            longer = window.compute_s - usual * (1 + of_hosts.get(window.host, 0.0))
            excess = _compute_excess(longer, usual, window, windows)
            raw = window.compute_s / of_others - 1 if of_others > 0 else 0.0
            starved = max(window.starved - usual_starved, 0.0)
            self._track("compute", rank).add(raw, excess, excess, windows[0].step, starved)

    def _add_input(self, windows: Sequence[Window], of_hosts: Mapping[str, float]) -> None:
        times, waits = [window.input_s for window in windows], [window.wait_s for window in windows]
        usual, others = statistics.median_low(times), _medians_of_others(times)
        for rank, window in enumerate(windows):
            longer = times[rank] - usual * (1 + of_hosts.get(window.host, 0.0))
            step_s = window.step_s or math.inf
            excess = longer / step_s if _holds_up(longer, window, max(waits)) else 0.0
            raw, share = (times[rank] - others[rank]) / step_s, times[rank] / step_s
            self._track("input", rank).add(raw, excess, share, windows[0].step)

    def _add_rails(self, windows: Sequence[Window]) -> None:
        rails = [(rank, rail) for rank, window in enumerate(windows) for rail in window.rails if rail.rate > 0]
        shares = [
            rail.rate / self._best.setdefault((rank, rail.name), _BestRate()).add(rail.rate) for rank, rail in rails
        ]
        for (rank, rail), share, usual in zip(rails, shares, _medians_of_others(shares), strict=True):
            excess = 1.0 - share / usual
            self._track("rail", rank, rail.name).add(excess, excess, share, windows[0].step)

    def _track(self, kind: str, rank: int, rail: str = "") -> _Track:
        return self._tracks.setdefault((kind, rank, rail), _Track())

    def _noise(self, kind: str) -> float:
        """Returns the standard deviation of the excesses of a kind from round to round, over all ranks."""
        return _spread([change for key, track in self._tracks.items() if key[0] == kind for change in track.changes()])

    # --- findings -----------------------------------------------------------------------------------------------------

    def _begun(self, key: tuple[str, int, str], track: _Track, windows: Sequence[Window]) -> Finding | None:
        """Begins the track's finding if there is reason to. Returns it, or None."""
        kind, rank, rail = key
        num = track.num_latest_above(_BEGINS[kind] / 2)
        if num < _ROUNDS or (excess := track.latest(track.excesses, num)) <= _BEGINS[kind]:
            return None
        noise = max(self._noise(kind), _spread(track.changes()))
        if excess <= _SIGMAS * _OF_MEDIAN * noise / math.sqrt(num):
            return None
        is_starved = kind in ("compute", "host") and _explains(track.latest(track.starved, num), excess)
        found: Any = "host" if is_starved else kind
        host = windows[rank].host
        track.finding = Finding(
            found,
            rank,
            host,
            track.latest(track.shares, num),
            track.steps[-num],
            rail,
            num_ranks=Counter(window.host for window in windows)[host] if kind == "host" else 1,
            is_starved=is_starved,
        )
        return track.finding

    def _renewed(self, key: tuple[str, int, str], track: _Track, step: int) -> Finding | None:
        """Ends the track's finding if there is reason to, and returns it. Otherwise renews its share."""
        assert track.finding is not None
        low = _BEGINS[key[0]] / 2
        if max(list(track.excesses)[-_ROUNDS:]) <= low:
            ended, track.finding = dataclasses.replace(track.finding, until_step=step), None
            self.ended.append(ended)
            return ended
        if (num := track.num_latest_above(low)) >= _ROUNDS:
            track.finding = dataclasses.replace(track.finding, share=track.latest(track.shares, num))
        return None


def _usual_compute(windows: Sequence[Window]) -> tuple[float, float]:
    """Returns the usual rank's time of compute, and the usual missing share of processor time."""
    times, starved = [window.compute_s for window in windows], [window.starved for window in windows]
    return statistics.median_low(times), statistics.median_low(starved)


def _compute_excess(longer: float, usual: float, window: Window, windows: Sequence[Window]) -> float:
    """Returns `longer` seconds of compute as a share of the usual rank's; 0 if no other rank waits for that."""
    longest_wait = max(each.wait_s for each in windows)
    return longer / usual if usual > 0 and _holds_up(longer, window, longest_wait) else 0.0


def _explains(starved: float, excess: float) -> bool:
    """Returns whether the missing share of processor time is the reason for an excess."""
    return starved >= _FROM_HOST * excess / (1 + excess)


def _holds_up(longer: float, window: Window, longest_wait: float) -> bool:
    """Returns whether a rank that takes `longer` seconds than the usual one makes another rank wait for it."""
    waited = longest_wait - window.wait_s
    return longer >= _LEAST_SHARE_OF_STEP * window.step_s and longer > 0 and waited >= _MADE_WAIT * longer


def _medians_of_others(values: Sequence[float]) -> list[float]:
    """Returns for each value the median of all others; for a single value 1."""
    if len(values) < 2:
        return [1.0] * len(values)
    ordered = sorted(values)
    found = {}
    for index, value in enumerate(ordered):
        if value not in found:
            found[value] = statistics.median(ordered[:index] + ordered[index + 1 :])
    return [found[value] for value in values]


def _spread(changes: Sequence[float]) -> float:
    """Returns the standard deviation of independent values that change so from round to round. Few large changes have
    no effect."""
    return max(_LEAST_NOISE, statistics.median(changes) / _NORMAL / math.sqrt(2)) if changes else _LEAST_NOISE

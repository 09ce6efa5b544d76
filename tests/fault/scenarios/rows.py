# SPDX-License-Identifier: Apache-2.0
"""The scenarios, one row for each: what is broken, which counters show it, and the figure with its limit.

The rows are numbered as in the project's list of faults: N for the network, R for ranks, S for strangers. To add one,
write a function that breaks something in a `Trial`, repairs it and returns the figure. Then add a row to `SCENARIOS`. A
scenario that expects errors leaves a group with failed ranks; the next trial gets a fresh group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from agspeed import netbed
from agspeed.netbed.rail import bits_per_second
from tests.fault.scenarios import strangers
from tests.fault.scenarios.group import RANKS, Options
from tests.fault.scenarios.trial import HangError, Trial, WrongError

__all__ = ["SCENARIOS", "Figure", "Scenario"]

Direction = Literal["in", "out"]
_BOTH: tuple[Direction, ...] = ("in", "out")
# All ranks together, while one link is down for a second. Attempts without pauses would be ten times as many.
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True)
class Figure:
    """A measured value and its limit. Tests never assert it, because it depends on the machine."""

    name: str
    unit: str = "ms"
    limit: float | None = None
    is_at_least: bool = False  # True: the limit is a lower bound


@dataclass(frozen=True)
class Scenario:
    row: str
    fault: str
    run: Callable[[Trial], float]
    figure: Figure
    has_hit: Callable[[Trial], bool]  # True if counters show that the fault reached the transport
    options: Options = field(default_factory=Options)
    resends: bool = True  # True: frames must be sent again in at least one trial
    why_impossible: Callable[[], str | None] = lambda: None


# --- N1, N2: a rail is cut, visibly or silently -----------------------------------------------------------------------


def link_down(trial: Trial, at: Literal["host", "switch"]) -> float:
    rail = trial.some_rail()
    rail.down(at)
    trial.hold_between(0.4, 1.2)
    rail.up(at)
    stall = trial.stall_ms()
    attempts = trial.counted("failovers")
    trial.notes["connections lost or failed"] = attempts
    if attempts > _MOST_ATTEMPTS:
        raise WrongError(f"{attempts} connections were lost or failed: attempts are not paused")
    return stall


def black_hole(trial: Trial, directions: tuple[Direction, ...]) -> float:
    rail = trial.some_rail()
    for direction in directions:
        rail.drop(direction)
    trial.hold_between(0.8, 1.6)
    rail.heal()
    return trial.stall_ms()


# --- N3, N4: a rail that comes and goes, and one that comes back ------------------------------------------------------


def flap(trial: Trial) -> float:
    """A link flaps ten times a second. Returns the speed in % of what the other rails can carry."""
    before = trial.speed(1.0)
    rail = trial.some_rail()
    begin = due = time.monotonic()
    while due < begin + 3.0:
        for change in (rail.down, rail.up):
            change()
            due += 0.05
            trial.hold(max(0.0, due - time.monotonic()))
    speed = trial.group.bytes_per_s(begin)
    trial.go_on()
    trial.notes["failovers per trial"] = trial.counted("failovers")
    stable = 1 - 1 / trial.options.rails
    return 100 * speed / (stable * before)


def come_back(trial: Trial) -> float:
    """Cuts a rail silently and repairs it. Returns the time from then until the interface carries data both ways."""
    enough = 100_000  # bytes: more than connection attempts send
    rail = trial.some_rail()
    for direction in _BOTH:
        rail.drop(direction)
    trial.hold_between(0.8, 3.0)
    rail.heal()
    mended = time.monotonic()
    before = rail.counters()

    def carries() -> bool:
        moved = rail.counters().since(before)
        return min(moved.sent_bytes, moved.received_bytes) > enough

    trial.wait_for("the rail carries data again", carries)
    took = time.monotonic() - mended
    trial.go_on()
    return 1000 * took


# --- N5: all rails of a host ------------------------------------------------------------------------------------------


def alone(trial: Trial, is_silent: bool) -> float:
    """Cuts all rails of a host for a second. Returns the time from the end of the cut until operations end again."""
    rails = trial.some_host().rails
    for rail in rails:
        if is_silent:
            rail.drop("in")
            rail.drop("out")
        else:
            rail.down("switch")
    trial.hold(1.0)
    for rail in rails:
        if is_silent:
            rail.heal()
        else:
            rail.up("switch")
    return trial.resumed_ms(time.monotonic())


def alone_for_good(trial: Trial) -> float:
    host = trial.some_host()
    for rail in host.rails:
        rail.drop("in")
        rail.drop("out")
    took = trial.failed_ms(host.index, [index for index in range(RANKS) if index != host.index])
    trial.group.wait_for(lambda: trial.group.members[host.index].failure is not None, 5.0)
    if trial.group.members[host.index].failure is None:
        raise HangError(f"rank {host.index}, which lost all others, did not fail")
    for rail in host.rails:
        rail.heal()
    return took


# --- N6: rates --------------------------------------------------------------------------------------------------------


def rate_change(trial: Trial) -> float:
    """Lowers one rail's rate on all hosts. Returns the speed in % of what the new rates allow."""
    before = trial.speed(1.0)
    factor = trial.random.choice((0.5, 0.25, 0.1))
    full = bits_per_second(trial.options.rate)
    slow = trial.rails(trial.random.randrange(trial.options.rails))
    for rail in slow:
        rail.set_rate(f"{round(full * factor)}bit")
    trial.hold(0.5)  # about five operations
    speed = trial.speed(2.0)
    for rail in slow:
        rail.set_rate(trial.options.rate)
    trial.go_on()
    allowed = (trial.options.rails - 1 + factor) / trial.options.rails
    trial.notes["rate kept, %"] = 100 * speed / before
    return 100 * speed / (allowed * before)


# --- N8, N9: bytes that change, packets that vanish -------------------------------------------------------------------


def corruption(trial: Trial, numbers: tuple[int, ...]) -> float:
    """Corrupts one packet in twenty on these rails of all hosts; a plain TCP stream beside it gets wrong bytes.

    Returns the speed in % of the speed before.
    """
    before = trial.speed(1.0)
    rails = [rail for number in numbers for rail in trial.rails(number)]
    for rail in rails:
        rail.corrupt("in", one_in=20)
    begin = time.monotonic()
    trial.hold_between(2.0, 3.0)
    speed = trial.group.bytes_per_s(begin)
    flows = netbed.stream(trial.bed, seconds=0.5, pairs=[(RANKS, 0)])
    for rail in rails:
        rail.heal()
    trial.go_on()
    trial.notes["wrong bytes by plain TCP"] = sum(flow.wrong_bytes for flow in flows)
    trial.notes["connections given up"] = trial.counted("failovers")
    return 100 * speed / before


def loss(trial: Trial, one_in: int) -> float:
    before = trial.speed(1.0)
    rails = [rail for number in range(trial.options.rails) for rail in trial.rails(number)]
    for rail in rails:
        rail.drop("in", one_in=one_in)
    speed = trial.speed(2.5)
    for rail in rails:
        rail.heal()
    trial.go_on()
    return 100 * speed / before


# --- R: ranks ---------------------------------------------------------------------------------------------------------


def killed(trial: Trial) -> float:
    """Returns the time from the kill until the last survivor has failed."""
    victim = trial.some_host().index
    trial.group.job.kill(victim)
    return trial.failed_ms(victim, [index for index in range(RANKS) if index != victim])


def stopped_for_a_moment(trial: Trial) -> float:
    """Returns the time from the continuation until operations end again."""
    victim = trial.some_host().index
    trial.group.job.stop(victim)
    trial.hold_between(1.0, 0.6 * trial.options.peer_timeout_s)
    trial.group.job.resume(victim)
    return trial.resumed_ms(time.monotonic())


def stopped_for_good(trial: Trial) -> float:
    """Returns the time from the stop until the last survivor gives the rank up. The rank itself fails when it
    continues."""
    victim = trial.some_host().index
    trial.group.job.stop(victim)
    took = trial.failed_ms(victim, [index for index in range(RANKS) if index != victim])
    trial.group.job.resume(victim)
    if not trial.group.wait_for(lambda: trial.group.members[victim].failure is not None, 20.0):
        raise HangError(f"rank {victim} woke too late and did not fail\n{trial.group.story()}")
    return took


def _is_warned_of(trial: Trial) -> bool:
    return any("has not answered" in line for member in trial.group.members for line in member.log)


# --- S: strangers -----------------------------------------------------------------------------------------------------

_KNOCKS_PER_S = 1000
_MOST_PENDING = 64  # in one listener
_MOST_GROWTH_KIB = 16 * 1024
_MOST_LOG_LINES = 64


def garbage(trial: Trial) -> float:
    """Strangers connect to all listeners while ranks compute and reduce. Returns the speed in % of the speed before."""
    before = trial.speed(1.0)
    cpu_before = trial.counted("cpu_s") / (time.monotonic() - trial.begin)
    lines_before = [member.num_log_lines for member in trial.group.members]
    targets = [
        (address, port)
        for found in trial.bed.call(strangers.listeners, hosts=range(RANKS))
        for address, port in found
        if port != trial.group.port  # the port of torch's store is left out
    ]
    seconds = 2.0
    begin, cpu_begin = time.monotonic(), trial.counted("cpu_s")
    seed = trial.random.randrange(1 << 32)
    job = trial.bed.start_call(strangers.knock, targets, _KNOCKS_PER_S, seconds, seed, hosts=[RANKS])
    speed = trial.speed(seconds)
    elapsed, cpu = time.monotonic() - begin, trial.counted("cpu_s") - cpu_begin
    descriptors, resident = trial.greatest_growth("descriptors"), trial.greatest_growth("resident_kib")
    trial.hold(2.0)  # some strangers stay connected for a while
    knocks: strangers.Knocks = job.wait(20, check=True)[0].value
    trial.go_on()
    said = max(member.num_log_lines - lines for member, lines in zip(trial.group.members, lines_before, strict=True))
    trial.notes |= {
        "connections": knocks.made,
        "refused": trial.counted("refused"),
        "descriptors": descriptors,
        "resident MiB": resident / 1024,
        "log lines": said,
        "CPU per connection, us": 1e6 * (cpu - cpu_before * elapsed) / knocks.made,
    }
    if knocks.answered_bytes:
        raise WrongError(f"a listener said {knocks.answered_bytes} bytes to strangers")
    if descriptors > trial.options.rails * _MOST_PENDING + 32:
        raise WrongError(f"a rank held {descriptors} more descriptors")
    if resident > _MOST_GROWTH_KIB:
        raise WrongError(f"a rank took {resident} KiB more memory")
    if said > _MOST_LOG_LINES:
        raise WrongError(f"a rank wrote {said} lines of log")
    return 100 * speed / before


# --- the table --------------------------------------------------------------------------------------------------------


def _gave_connections_up(trial: Trial) -> bool:
    return trial.counted("failovers") > 0


def _stalled(trial: Trial) -> bool:
    return trial.counted("stalls") > 0


def _was_corrupted(trial: Trial) -> bool:
    return _gave_connections_up(trial) and trial.notes["wrong bytes by plain TCP"] > 0


def _was_lossy(trial: Trial) -> bool:
    return trial.counted("retransmitted") > 0


def _always(_: Trial) -> bool:
    """For scenarios whose outcome itself shows the fault."""
    return True


_LOUD = Figure("stall", limit=200)
_SILENT = Figure("stall", limit=600)
_FOUR = Options(rails=4, rate="100mbit")
_SHORT_TIMEOUT = Options(peer_timeout_s=3.0)
_AT_THE_TIMEOUT = Figure("reported", limit=1000 * _SHORT_TIMEOUT.peer_timeout_s + 1000)

SCENARIOS = (
    Scenario("N1", "link down at its host, 1 of 2", partial(link_down, at="host"), _LOUD, _gave_connections_up),
    Scenario("N1", "carrier lost, 1 of 2", partial(link_down, at="switch"), _LOUD, _gave_connections_up),
    Scenario("N1", "carrier lost, 1 of 4", partial(link_down, at="switch"), _LOUD, _gave_connections_up, _FOUR),
    Scenario("N2", "black hole towards a host", partial(black_hole, directions=("in",)), _SILENT, _stalled),
    Scenario("N2", "black hole from a host", partial(black_hole, directions=("out",)), _SILENT, _stalled),
    Scenario("N2", "black hole both ways", partial(black_hole, directions=_BOTH), _SILENT, _stalled),
    Scenario("N3", "link flaps at 10 Hz", flap, Figure("speed", "%", 80, True), _gave_connections_up),
    Scenario("N4", "rail comes back", come_back, Figure("back", limit=2000), _stalled),
    Scenario("N5", "no carrier for 1 s", partial(alone, is_silent=False), Figure("resumed"), _gave_connections_up),
    Scenario("N5", "black hole on all rails, 1 s", partial(alone, is_silent=True), Figure("resumed"), _stalled),
    Scenario(
        "N5",
        "black hole on all rails for good",
        alone_for_good,
        _AT_THE_TIMEOUT,
        _always,
        _SHORT_TIMEOUT,
        resends=False,
    ),
    Scenario(
        "N6",
        "rail at 1/2, 1/4, 1/10",
        rate_change,
        Figure("of the rates", "%", 93, True),
        _always,
        Options(rate="50mbit"),  # so low that links are the limit, not processors
        resends=False,
    ),
    Scenario(
        "N8",
        "1 packet in 20 corrupted, 1 rail of 2",
        partial(corruption, numbers=(1,)),
        Figure("speed", "%"),
        _was_corrupted,
        why_impossible=netbed.corruption_unavailable,
    ),
    Scenario(
        "N8",
        "1 packet in 20 corrupted, all rails",
        partial(corruption, numbers=(0, 1)),
        Figure("speed", "%"),
        _was_corrupted,
        why_impossible=netbed.corruption_unavailable,
    ),
    Scenario(
        "N9", "0.1 % of packets lost", partial(loss, one_in=1000), Figure("speed", "%"), _was_lossy, resends=False
    ),
    Scenario("N9", "1 % of packets lost", partial(loss, one_in=100), Figure("speed", "%"), _was_lossy, resends=False),
    Scenario("R1", "rank killed", killed, Figure("reported", limit=500), _always, resends=False),
    Scenario(
        "R4", "rank stopped for a moment", stopped_for_a_moment, Figure("resumed"), _is_warned_of, _SHORT_TIMEOUT, False
    ),
    Scenario("R4", "rank stopped for good", stopped_for_good, _AT_THE_TIMEOUT, _is_warned_of, _SHORT_TIMEOUT, False),
    Scenario(
        "S1",
        "1000 strangers a second",
        garbage,
        Figure("speed", "%", 95, True),
        lambda trial: trial.notes["refused"] > trial.notes["connections"] / 2,
        Options(pause_s=0.02),
        resends=False,
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""The coordinator of an elastic job, with simulated members, in all orders of events and in random ones."""

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from agspeed.membership.actions import Action, Change, End, Epoch, Expulsion, Release
from agspeed.membership.coordinator import Coordinator, Limits, Position, Progress, Report
from tests.python.support.pairs import first_of

_NUM_RANDOM = int(os.environ.get("AG_TEST_MEMBERSHIPS", "2000"))
_EVENTS = {"move": 30, "kill": 2, "stop": 1, "leave": 1, "retire": 1, "start": 3, "wait": 1, "relaunch": 1}
"""Events of random jobs, with their weights."""
_NEW = Position(has_state=False, step=0)


@dataclass
class Peer:
    """A process as the coordinator sees it."""

    epoch: int = 0
    rank: int = 0
    size: int = 0
    step: int = 0
    has_state: bool = False
    is_synced: bool = False
    is_waiting: bool = False
    has_lost: bool = False
    is_stopped: bool = False
    must_wait: bool = False
    is_leaving: bool = False
    up: deque[str] = field(default_factory=deque)
    down: deque[Epoch | str] = field(default_factory=deque)

    def report(self) -> Report:
        """All that it has said, whether it has arrived or not."""
        waits = self.is_waiting or "ready" in self.up
        return Report(
            self.epoch,
            self.rank,
            self.size,
            Position(self.has_state, self.step) if waits else None,
            self.is_synced,
            self.is_leaving,
            self.must_wait and not waits,
            self.has_lost,
        )


class Job:
    """A coordinator and its members. The messages between them arrive in order, after any time."""

    def __init__(self, limits: Limits, num_first: int) -> None:
        self.coordinator, self.now = Coordinator(limits), 0.0
        self.living: dict[int, Peer] = {}
        self.epochs: list[Epoch] = []
        self.ends: list[str] = []
        self.released: list[int] = []
        for _ in range(num_first):
            self.start()

    def start(self) -> int:
        member, actions = self.coordinator.join(self.now)
        self.living[member] = Peer(up=deque(["ready"]))
        self.act(actions)
        return member

    def act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            assert not self.ends, f"{action} after the end"
            match action:
                case Epoch(number, members, source, _):
                    assert number == len(self.epochs) + 1
                    assert len(set(members)) == len(members) >= 1
                    assert 0 <= source < len(members)
                    self.epochs.append(action)
                    for member in members:
                        if member in self.living:  # one that has ended may not be known as such yet
                            self.living[member].down.append(action)
                case Change(members, _):
                    assert set(members) <= set(self.coordinator.ranks)
                    for member in members:
                        if member in self.living:
                            self.living[member].down.append("change")
                case Release(member):
                    self.released.append(member)
                    if member in self.living:
                        assert self.living[member].is_leaving and self.living[member].is_waiting
                        self.kill(member)
                case Expulsion(member):
                    peer = self.living.get(member)
                    assert peer is None or peer.is_stopped or peer.up or peer.down, "it had answered"
                    if peer is not None:
                        self.kill(member)
                case End(reason):
                    self.ends.append(reason)

    def relaunch(self, num_delivered: int) -> None:
        """The launcher is killed, and another one follows. Messages on their way are lost, except the first ones to
        members. A member that is stopped does not report, and is expelled."""
        for member in [member for member, each in self.living.items() if each.is_stopped]:
            epoch = self.living.pop(member).epoch
            self.miss(epoch)
        for member, each in self.living.items():
            while each.down and num_delivered > 0 and not each.up:
                num_delivered -= 1
                self.move(member)
        before = self.coordinator
        reports = {member: each.report() for member, each in self.living.items()}
        for each in self.living.values():
            each.is_waiting |= "ready" in each.up
            each.up.clear()
            each.down.clear()
        for each in self.living.values():  # a process that has not said anything says it to the new launcher
            if each.epoch == 0 and not each.is_waiting:
                each.up.append("ready")
        self.coordinator, actions = Coordinator.rebuilt(before.limits, before.progress, reports, self.now)
        assert self.coordinator.progress.num_known == before.progress.num_known, "ids are never used again"
        assert set(self.coordinator.ranks) <= set(self.living)
        if before.is_over:
            assert self.coordinator.is_over
            self.ends.clear()
        self.act(actions)

    def kill(self, member: int) -> None:
        """The messages of a process that has ended still arrive, before the news of its end."""
        peer = self.living.pop(member)
        for message in [*peer.up, "gone"]:
            self.hear(member, peer, message)
        self.miss(peer.epoch)

    def miss(self, epoch: int) -> bool:
        """Lets the members of an epoch lose a peer. Returns: False if none of them trains."""
        others = [each for each in self.living.values() if each.epoch == epoch > 0 and not each.is_stopped]
        training = [each for each in others if not each.is_waiting and not each.must_wait]
        for other in training:
            other.up.append("lost")
            other.must_wait = other.has_lost = True
        return bool(training)

    def miss_stopped(self) -> bool:
        """Peers of a stopped process run out of time."""
        stopped = [member for member, each in self.living.items() if each.is_stopped]
        of_them = {each.number for each in self.epochs if set(stopped).intersection(each.members)}
        return sum(self.miss(number) for number in of_them) > 0

    def hear(self, member: int, peer: Peer, message: str) -> None:
        coordinator = self.coordinator
        match message.split():
            case ["ready"]:
                position = Position(peer.has_state, peer.step)
                self.act(coordinator.ready(member, peer.epoch, position, self.now))
            case ["lost"]:
                self.act(coordinator.lost(member, peer.epoch, self.now))
            case ["answer"]:
                self.act(coordinator.answer(member, self.now))
            case ["synced", epoch]:
                self.act(coordinator.synced(member, int(epoch), self.now))
            case ["leave"]:
                self.act(coordinator.leave(member, self.now))
            case ["gone"]:
                self.act(coordinator.gone(member, self.now))

    def move(self, member: int) -> bool:
        """Lets one thing happen to a member. Returns: False if it has nothing to do but train, or waits."""
        peer = self.living[member]
        if peer.up:
            message = peer.up.popleft()
            if message == "ready":
                peer.is_waiting = True
            self.hear(member, peer, message)
        elif peer.is_stopped:
            return False
        elif peer.down:
            found = peer.down.popleft()
            if isinstance(found, Epoch):
                assert peer.is_waiting and found.number > peer.epoch
                peer.epoch, peer.rank, peer.size = found.number, found.members.index(member), len(found.members)
                peer.is_waiting = peer.must_wait = peer.is_synced = peer.has_lost = False
                if any(each not in self.living for each in found.members):
                    peer.up.append("lost")
                    peer.must_wait = peer.has_lost = True
            else:
                peer.up.append("answer")
                peer.must_wait = peer.must_wait or not peer.is_waiting
        elif peer.must_wait and not peer.is_waiting:
            peer.up.append("ready")
        elif peer.epoch and not peer.is_synced and not peer.is_waiting:
            peer.is_synced = peer.has_state = True
            peer.step = max([each.step for each in self.living.values() if each.epoch == peer.epoch])
            peer.up.append(f"synced {peer.epoch}")
        else:
            return False
        return True

    def settle(self) -> None:
        """Delivers everything, and lets time pass until nothing happens any more."""
        for _ in range(1000):
            if any(self.move(member) for member in list(self.living) if member in self.living):
                continue
            if self.miss_stopped():
                continue
            if self.coordinator.deadline - self.now > self.coordinator.limits.silence_s:
                return  # nothing but the wait for more members
            self.now = max(self.now, self.coordinator.deadline)
            self.act(self.coordinator.tick(self.now))
        raise AssertionError("the members never come to rest")

    def check(self) -> None:
        """Nobody waits for ever, unless there are too few members."""
        self.settle()
        if self.ends:
            return
        limits = self.coordinator.limits
        willing = [id for id, each in self.living.items() if not each.is_leaving]
        if len(willing) < (limits.least if self.epochs else limits.first):
            self.now += limits.wait_s + limits.silence_s
            self.act(self.coordinator.tick(self.now))
            self.settle()
            assert self.ends or self.coordinator.ranks or not self.living
            return
        assert self.epochs and set(self.epochs[-1].members) == set(self.coordinator.ranks) <= set(self.living)
        if all(self.living[member].is_stopped for member in self.coordinator.ranks):
            return  # no peer is left that could miss them
        assert len(self.coordinator.ranks) == min(limits.most, len(willing)), (self.coordinator.ranks, willing)
        for member in self.coordinator.ranks:
            assert self.living[member].epoch == self.coordinator.epoch and not self.living[member].is_waiting


def test_a_new_coordinator_lets_members_train_on() -> None:
    trained = {member: Report(4, rank, 2, None, is_synced=True) for rank, member in enumerate((5, 3))}
    job, actions = Coordinator.rebuilt(Limits(1, 3, 2), Progress(4, 7, True), trained, 0)
    assert actions == [] and job.ranks == (5, 3)
    assert job.join(1) == (7, []), "an id is never used again"
    assert job.ready(7, 0, _NEW, 2) == [Change((5, 3), is_broken=False)]
    assert job.ready(5, 4, Position(True, 8), 3) == []
    assert job.ready(3, 4, Position(True, 8), 3) == [Epoch(5, (5, 3, 7), source=0, has_lost=False)]


@pytest.mark.parametrize(
    "missed",
    [
        Report(4, 1, 3, None, is_synced=True),
        Report(4, 1, 2),
        Report(3, 1, 2, Position(True, 7)),
        Report(4, 1, 2, None, is_synced=True, is_broken=True),
    ],
    ids=["a member was lost", "it has no state", "it missed the announcement", "it waits for the store"],
)
def test_a_new_coordinator_ends_an_epoch_that_is_not_whole(missed: Report) -> None:
    trained = {0: Report(4, 0, missed.size, None, is_synced=True), 1: missed}
    job, (change,) = Coordinator.rebuilt(Limits(1, 2, 2), Progress(4, 2, True), trained, 0)
    assert change == Change((0, 1) if missed.waiting is None else (0,), is_broken=True)
    position = missed.waiting or Position(False, 0)
    if missed.waiting is None:
        assert job.ready(1, missed.epoch, position, 1) == []
    (epoch,) = job.ready(0, 4, Position(True, 8), 1)
    assert isinstance(epoch, Epoch) and (epoch.number, epoch.members, epoch.source) == (5, (0, 1), 0)


def test_a_new_coordinator_knows_that_the_job_was_over() -> None:
    done = {0: Report(1, 0, 1, Position(True, 9, is_done=True))}
    job, actions = Coordinator.rebuilt(Limits(1, 1, 1), Progress(1, 1, True, ""), done, 0)
    assert actions == [End("")] and job.is_over


def test_a_new_coordinator_knows_that_the_state_was_lost() -> None:
    job, actions = Coordinator.rebuilt(Limits(1, 1, 1), Progress(3, 4, True), {3: Report(waiting=_NEW)}, 0)
    assert isinstance(actions[0], End) and "state were lost" in actions[0].reason and job.is_over


def test_survivors_come_first_and_newcomers_take_over_the_newest_state() -> None:
    job = Coordinator(Limits(least=1, most=4, first=3))
    for member in range(3):
        assert job.join(0)[0] == member
    assert job.ready(2, 0, _NEW, 0) == job.ready(0, 0, _NEW, 0) == []
    assert job.ready(1, 0, _NEW, 0) == [Epoch(1, (0, 1, 2), source=0, has_lost=False)]
    assert job.gone(0, 1) == [Change((1, 2), is_broken=True)]
    job.join(1)
    assert job.ready(3, 0, _NEW, 1) == job.ready(1, 1, Position(True, 7), 1) == []
    assert job.ready(2, 1, Position(True, 8), 1) == [Epoch(2, (1, 2, 3), source=1, has_lost=True)]


def test_an_epoch_that_failed_without_a_lost_process_says_so() -> None:
    job = Coordinator(Limits(least=1, most=2, first=2))
    for _ in range(2):
        job.join(0)
    job.ready(0, 0, _NEW, 0)
    assert job.ready(1, 0, _NEW, 0) == [Epoch(1, (0, 1), source=0, has_lost=False)]
    job.lost(0, 1, 0)
    job.ready(0, 1, Position(True, 3), 0)
    assert job.ready(1, 1, Position(True, 3), 0) == [Epoch(2, (0, 1), source=0, has_lost=False)]


def test_a_member_that_does_not_answer_is_expelled_and_ignored_afterwards() -> None:
    job = Coordinator(Limits(least=1, most=2, first=2, silence_s=2))
    for member in range(2):
        job.join(0)
        job.ready(member, 0, _NEW, 0)
    assert job.lost(0, 1, 10) == [Change((0, 1), is_broken=True)]
    assert job.ready(0, 1, Position(True, 1), 10) == [] and job.deadline == 12
    expulsion, epoch = job.tick(12)
    assert (
        isinstance(expulsion, Expulsion) and expulsion.member == 1 and epoch == Epoch(2, (0,), source=0, has_lost=True)
    )
    assert job.ready(1, 1, Position(True, 1), 13) == job.lost(1, 1, 13) == job.gone(1, 13) == []


def test_a_pause_of_three_seconds_costs_no_member_its_place() -> None:
    job = Coordinator(Limits(least=1, most=2, first=2))
    for member in range(2):
        job.join(0)
        job.ready(member, 0, _NEW, 0)
    job.lost(0, 1, 10)
    job.ready(0, 1, Position(True, 1), 10)
    assert job.tick(13.5) == []
    assert job.ready(1, 1, Position(True, 1), 13.5) == [Epoch(2, (0, 1), source=0, has_lost=False)]


def test_a_member_that_computes_for_long_is_waited_for() -> None:
    job = Coordinator(Limits(least=1, most=2, first=2, silence_s=2))
    for member in range(2):
        job.join(0)
        job.ready(member, 0, _NEW, 0)
    job.join(5)
    assert job.ready(2, 0, _NEW, 5) == [], "there is no room for a third"
    assert job.gone(1, 6) == [Change((0,), is_broken=True)] and job.answer(0, 6) == []
    assert job.deadline == 8 and job.tick(8) == [Change((0,), is_broken=True)], (
        "it is asked again, and answers each time"
    )
    assert job.answer(0, 8) == [] and job.tick(10) == [Change((0,), is_broken=True)] and job.answer(0, 10) == []
    assert job.ready(0, 1, Position(True, 9), 11) == [Epoch(2, (0, 2), source=0, has_lost=True)]


def test_lost_state_ends_the_job_with_a_sentence() -> None:
    job = Coordinator(Limits(least=1, most=2, first=1))
    job.join(0)
    job.ready(0, 0, _NEW, 0)
    job.synced(0, 1, 0)
    job.join(1)
    (end,) = job.gone(0, 2)
    assert isinstance(end, End) and "state were lost" in end.reason and job.is_over


def test_the_job_is_done_when_all_members_are() -> None:
    job = Coordinator(Limits(least=1, most=3, first=2))
    for member in range(2):
        job.join(0)
        job.ready(member, 0, _NEW, 0)
    assert job.ready(0, 1, Position(True, 10, is_done=True), 1) == []
    assert job.ready(1, 1, Position(True, 10, is_done=True), 1) == [End("")]


def test_a_member_that_missed_the_last_step_gets_it_from_one_that_is_done() -> None:
    job = Coordinator(Limits(least=1, most=3, first=2))
    for member in range(2):
        job.join(0)
        job.ready(member, 0, _NEW, 0)
    job.ready(1, 1, Position(True, 10, is_done=True), 1)
    assert job.ready(0, 1, Position(True, 9), 1) == [Epoch(2, (0, 1), source=1, has_lost=False)]


def test_a_member_that_leaves_hands_its_state_over_first() -> None:
    job = Coordinator(Limits(least=1, most=1, first=1))
    job.join(0)
    job.ready(0, 0, _NEW, 0)
    job.synced(0, 1, 0)
    job.join(1)
    assert job.leave(0, 1) == [Change((0,), is_broken=False)]
    assert job.ready(0, 1, Position(True, 5), 1) == [], "the newcomer is not ready"
    assert job.ready(1, 0, _NEW, 2) == [Epoch(2, (0, 1), source=0, has_lost=False)]
    assert job.synced(0, 2, 2) == [] and job.synced(1, 2, 3) == [Change((0, 1), is_broken=False)]
    assert job.ready(1, 2, Position(True, 5), 3) == []
    assert job.ready(0, 2, Position(True, 5), 3) == [Release(0), Epoch(3, (1,), source=0, has_lost=False)]


def test_a_handover_that_fails_is_tried_again() -> None:
    job = Coordinator(Limits(least=1, most=1, first=1))
    job.join(0)
    job.ready(0, 0, _NEW, 0)
    job.synced(0, 1, 0)
    job.join(1)
    job.leave(0, 1)
    job.ready(0, 1, Position(True, 5), 1)
    assert job.ready(1, 0, _NEW, 2) == [Epoch(2, (0, 1), source=0, has_lost=False)]
    assert job.lost(1, 2, 3) == [Change((0, 1), is_broken=True)]
    assert job.ready(1, 2, _NEW, 3) == []
    assert job.ready(0, 2, Position(True, 5), 3) == [Epoch(3, (0, 1), source=0, has_lost=False)]


def test_members_that_retire_keep_the_state_until_a_new_member_has_it() -> None:
    job = Coordinator(Limits(least=1, most=2, first=2, wait_s=60))
    for member in range(2):
        job.join(0)
        job.ready(member, 0, _NEW, 0)
        job.synced(member, 1, 0)
    assert job.retire(0, 1) == [Change((0, 1), is_broken=False)] and job.retire(1, 1) == [Change((0, 1), False)]
    assert job.ready(0, 1, Position(True, 5), 2) == job.ready(1, 1, Position(True, 5), 2) == []
    assert not job.is_over and job.deadline == 62
    job.join(3)
    assert job.ready(2, 0, _NEW, 4) == [Epoch(2, (0, 1, 2), source=0, has_lost=False)]
    job.synced(0, 2, 4)
    job.synced(1, 2, 4)
    assert job.synced(2, 2, 5) == [Change((0, 1, 2), is_broken=False)]
    for member in range(2):
        assert job.ready(member, 2, Position(True, 5), 6) == []
    assert job.ready(2, 2, Position(True, 5), 6) == [
        Release(0),
        Release(1),
        Epoch(3, (2,), source=0, has_lost=False),
    ]


def test_members_that_retire_end_the_job_if_no_other_one_comes_in_time() -> None:
    job = Coordinator(Limits(least=1, most=1, first=1, wait_s=60))
    job.join(0)
    job.ready(0, 0, _NEW, 0)
    job.synced(0, 1, 0)
    job.retire(0, 1)
    assert job.ready(0, 1, Position(True, 5), 2) == []
    (end,) = job.tick(62)
    assert isinstance(end, End) and end.reason.startswith("0 of at least 1 members were ready after 60 s")


def test_too_few_members_wait_and_end_after_a_time() -> None:
    job = Coordinator(Limits(least=2, most=2, first=2, wait_s=60))
    for member in range(2):
        job.join(0)
        job.ready(member, 0, _NEW, 0)
    job.gone(1, 5)
    assert job.ready(0, 1, Position(True, 1), 5) == [] and job.deadline == 65
    (end,) = job.tick(65)
    assert isinstance(end, End) and end.reason.startswith("1 of at least 2 members were ready after 60 s")


@pytest.mark.slow
@pytest.mark.parametrize("limits", first_of([Limits(1, 3, 2), Limits(2, 2, 2), Limits(2, 3, 3)], 1), ids=str)
def test_all_orders_of_four_events_of_three_members(limits: Limits) -> None:
    events = [(kind, member) for kind in ("kill", "stop", "leave", "move", "start") for member in range(3)]
    events.append(("retire", 0))
    for chosen in itertools.product(events, repeat=4):
        job = Job(limits, 2)
        for kind, member in chosen:
            happen(job, kind, member)
        job.check()


def test_a_launcher_may_be_killed_between_any_two_of_three_events() -> None:
    events = [(kind, member) for kind in ("kill", "stop", "leave", "move", "start") for member in range(3)]
    for *chosen, num_delivered in itertools.product(events, events, range(3)):
        job = Job(Limits(1, 3, 2), 2)
        for _ in range(6):  # the members form the first epoch, and some have its state
            happen(job, "move", len(job.epochs) % 2)
        happen(job, *chosen[0])
        job.relaunch(num_delivered)
        happen(job, *chosen[1])
        job.check()


def test_answers_that_the_launcher_reads_late_count() -> None:
    """A launcher that stood still reads the answer of one member, and then that of another."""
    coordinator = Coordinator(Limits(least=1, most=3, first=3, silence_s=2.0, wait_s=600.0))
    for _ in range(3):
        coordinator.join(0.0)
    for member in range(3):
        coordinator.ready(member, 0, Position(has_state=False, step=0), 0.0)
    assert coordinator.epoch == 1
    coordinator.gone(2, 10.0)
    assert coordinator.answer(0, 13.0) == coordinator.answer(1, 13.0) == []
    assert not any(isinstance(each, Expulsion) for each in coordinator.tick(13.0))


def test_random_jobs_never_wait_for_ever() -> None:
    for seed in range(_NUM_RANDOM):
        chance = random.Random(seed)
        least = chance.randint(1, 3)
        most = chance.randint(least, 5)
        job = Job(Limits(least, most, chance.randint(least, most)), chance.randint(1, 5))
        for _ in range(chance.randint(1, 60)):
            kind = chance.choices(list(_EVENTS), list(_EVENTS.values()))[0]
            happen(job, kind, chance.choice(list(job.living) or [0]))
        try:
            job.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def happen(job: Job, kind: str, member: int) -> None:
    if kind == "start" and not job.ends and len(job.living) < 6:
        job.start()
    if kind == "relaunch":
        job.relaunch(member % 3)
    if kind == "wait" and not job.ends:
        job.now += 1
        job.act(job.coordinator.tick(job.now))
    peer = job.living.get(member)
    if peer is None or job.ends:
        return
    if kind == "kill":
        job.kill(member)
    elif kind == "stop":
        peer.is_stopped = True
    elif kind == "leave" and not peer.is_leaving:
        peer.is_leaving = True
        peer.up.append("leave")
    elif kind == "retire" and not peer.is_leaving:
        peer.is_leaving = True
        job.act(job.coordinator.retire(member, job.now))
    elif kind == "move":
        job.move(member)

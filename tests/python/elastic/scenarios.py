# SPDX-License-Identifier: Apache-2.0
"""A table of elastic jobs: their hosts, what happens at which step, and what follows.

`scenario_training.py` is the training of all of them, under Horovod's API and under DistributedDataParallel. The hosts
are names of `../launch/fake_ssh.py`, so all of them are this machine.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "NUM_STEPS",
    "SCENARIOS",
    "AfterLeaving",
    "EarlyOperation",
    "Failure",
    "Hosts",
    "Scenario",
    "Terminate",
    "Wait",
]

NUM_STEPS = 16
"""The steps of each training."""
_NO_OTHERS = ("--blacklist-cooldown-range", "600", "600")  # no member takes the place of a failed one
_QUICK = ("--blacklist-cooldown-range", "1", "2")


@dataclass(frozen=True)
class Failure:
    """Before the step, these ranks fail, by an exception or by SIGKILL. Each one does so once."""

    step: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Terminate:
    """Before the step, this rank gets SIGTERM, once."""

    step: int
    rank: int


@dataclass(frozen=True)
class Hosts:
    """Before the step, rank 0 changes the list of hosts, and waits until another group is to be made."""

    step: int
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Before the step, rank 0 waits until another group is to be made, if there are fewer members than `size`."""

    step: int
    size: int


@dataclass(frozen=True)
class EarlyOperation:
    """Under Horovod's API, each member broadcasts its parameters before `hvd.elastic.run`."""


@dataclass(frozen=True)
class AfterLeaving:
    """A member that has left the job changes the list of hosts."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """
    Attributes:
        limits: how many members train at the begin, and the least and the greatest number of them.
        hosts: at the begin.
        sizes: of the groups that train, in their order. The last one trains to the end, unless the job `fails`. While
            members join one after another, there may be groups of sizes in between.
        options: further words of `agspeed run`.
        is_fixed: whether the command names the hosts. Otherwise a script finds them.
        fails: words of the launcher's last lines, if the job cannot go on.
        says: words of its lines in any case.
    """

    limits: tuple[int, int, int]
    hosts: tuple[str, ...]
    events: tuple[AfterLeaving | EarlyOperation | Failure | Hosts | Terminate | Wait, ...]
    sizes: tuple[int, ...]
    options: tuple[str, ...] = ()
    is_fixed: bool = False
    fails: str = ""
    says: str = ""

    @property
    def faces(self) -> tuple[str, ...]:
        return ("horovod",) if EarlyOperation() in self.events else ("horovod", "ddp")

    @property
    def has_failures(self) -> bool:
        return any(isinstance(event, Failure) for event in self.events)

    @property
    def steps_kept(self) -> set[int]:
        """The steps that are not lost, because members finish them before they form another group."""
        return {event.step for event in self.events if isinstance(event, Hosts)}


_TWO_HOSTS = ("localhost:2", "node0:2")
_COME_AND_GO = (Hosts(4, _TWO_HOSTS), Wait(8, 4), Hosts(10, ("node0:2",)))
_ONE_BY_ONE = (Hosts(4, ("localhost:1", "node0:1")), Hosts(10, ("node0:1",)))

SCENARIOS = {
    # Horovod's own cases. In Horovod, a failure excludes the whole host, so that fewer ranks go on.
    "hosts come and go": Scenario((2, 2, 4), ("localhost:2",), _COME_AND_GO, (2, 4, 2)),
    "hosts of one rank come and go": Scenario((1, 1, 2), ("localhost:1",), _ONE_BY_ONE, (1, 2, 1)),
    "rank 0 fails": Scenario((4, 2, 4), _TWO_HOSTS, (Failure(5, (0,)),), (4, 3), _NO_OTHERS),
    "rank 0 fails on named hosts": Scenario(
        (4, 2, 4), _TWO_HOSTS, (Failure(5, (0,)),), (4, 3), _NO_OTHERS, is_fixed=True
    ),
    "all ranks fail": Scenario(
        (4, 2, 4), _TWO_HOSTS, (Failure(5, (0, 1, 2, 3)),), (4,), fails="so the job was ended; its last lines"
    ),
    "a rank of each host fails": Scenario((4, 2, 4), _TWO_HOSTS, (Failure(5, (0, 2)),), (4, 2), _NO_OTHERS),
    "too few are left": Scenario(
        (4, 4, 4),
        _TWO_HOSTS,
        (Failure(5, (0,)),),
        (4,),
        (*_NO_OTHERS, "--elastic-timeout", "40"),
        fails="the job cannot go on: 3 of at least 4 members were ready after 40 s",
    ),
    "more changes than allowed": Scenario(
        (1, 1, 2), ("localhost:1",), _ONE_BY_ONE, (1, 2), ("--reset-limit", "1"), fails="--reset-limit allows"
    ),
    "as many changes as allowed": Scenario((1, 1, 2), ("localhost:1",), _ONE_BY_ONE, (1, 2, 1), ("--reset-limit", "2")),
    "a host that fails twice comes back": Scenario(
        (4, 2, 4),
        _TWO_HOSTS,
        (Failure(5, (3,)), Wait(6, 4), Failure(9, (3,)), Wait(12, 4)),
        (4, 3, 4, 3, 4),
        _QUICK,
    ),
    # Faults that users of Horovod have reported.
    "the minimum is kept by newcomers when a host leaves": Scenario(
        (2, 2, 2),
        ("localhost:1", "node0:1"),
        (Hosts(4, ("localhost:1",)), AfterLeaving(("localhost:1", "node1:1"))),
        (2, 2),
    ),
    "the minimum is kept by newcomers when rank 0's host leaves": Scenario(
        (2, 2, 2),
        ("localhost:1", "node0:1"),
        (Hosts(4, ("node0:1",)), AfterLeaving(("node0:1", "node1:1"))),
        (2, 2),
    ),
    "the minimum is kept by newcomers after SIGTERM": Scenario(
        (2, 2, 2),
        ("localhost:1", "node0:1"),
        (Terminate(5, 1), AfterLeaving(("localhost:1", "node1:1"))),
        (2, 2),
    ),
    "all ranks of a host fail at once": Scenario((4, 2, 4), _TWO_HOSTS, (Failure(5, (2, 3)),), (4, 2), _NO_OTHERS),
    "all ranks of rank 0's host fail at once": Scenario(
        (4, 2, 4), _TWO_HOSTS, (Failure(5, (0, 1)),), (4, 2), _NO_OTHERS
    ),
    "a newcomer broadcasts before the training": Scenario(
        (1, 1, 2),
        ("localhost:1",),
        (EarlyOperation(), Hosts(4, ("localhost:1", "node0:1"))),
        (1, 1),
        _NO_OTHERS,
        says="this rank has joined a job that trains, and starts an operation before the function of hvd.elastic.run",
    ),
    "ranks fail one after another": Scenario(
        (4, 1, 4), _TWO_HOSTS, (Failure(3, (2,)), Failure(7, (2,)), Failure(11, (0,))), (4, 3, 2, 1), _NO_OTHERS
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""Runs the trials of a scenario one after another. A bed and a group are reused until a trial breaks them."""

from __future__ import annotations

import contextlib
import random
import sys

from agspeed import netbed
from tests.fault.scenarios.group import RANKS, Group, Options
from tests.fault.scenarios.results import Result
from tests.fault.scenarios.rows import Scenario
from tests.fault.scenarios.trial import HangError, Trial, WrongError

__all__ = ["Stage", "run"]


class Stage:
    """A bed and the group of ranks on it. Not thread-safe; close it to end both."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._options: Options | None = None
        self._bed: netbed.Netbed | None = None
        self._group: Group | None = None
        self._digests: set[str] = set()

    def prepare(self, options: Options) -> tuple[netbed.Netbed, Group]:
        """Returns the current bed and group if they fit and no rank has failed, and new ones otherwise.

        Raises WrongError if the fault-free results of any two groups differ.
        """
        if self._bed is None or self._options != options:
            self.close()
            # One host more than there are ranks, for the strangers.
            self._bed = self._held.enter_context(netbed.Netbed(hosts=RANKS + 1, rails=options.rails, rate=options.rate))
            self._options = options
        if self._group is None or not self._group.is_whole:
            self._end_group()
            self._group = Group(self._bed, options)
            self._digests |= {member.digest for member in self._group.members}
            if len(self._digests) > 1:
                raise WrongError("ranks or groups differ in the results of the same operations without any fault")
        return self._bed, self._group

    def close(self) -> None:
        self._end_group()
        self._held.close()
        self._bed = None

    def _end_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None


def run(stage: Stage, scenario: Scenario, count: int, seed: int) -> Result:
    result = Result(scenario, skipped=scenario.why_impossible() or "")
    for index in range(0 if result.skipped else count):
        name = f"{seed}/{scenario.row}/{scenario.fault}/{index}"
        result.trials += 1
        try:
            _run_trial(stage, result, random.Random(name))
        except (HangError, WrongError, netbed.NetbedError) as error:
            result.hangs += isinstance(error, HangError)
            result.errors.append(f"trial {name}: {error}")
            print(result.errors[-1], file=sys.stderr, flush=True)
            stage.close()  # because its state is unknown
    return result


def _run_trial(stage: Stage, result: Result, chance: random.Random) -> None:
    scenario = result.scenario
    bed, group = stage.prepare(scenario.options)
    wrong_before = [member.wrong for member in group.members]
    try:
        trial = Trial(bed, group, scenario.options, chance)
        result.figures.append(scenario.run(trial))
    finally:
        result.wrong += sum(member.wrong - before for member, before in zip(group.members, wrong_before, strict=True))
    result.quiet_ms.append(trial.quiet_ms)
    result.resent += round(trial.counted("resent"))
    result.hits += scenario.has_hit(trial)
    for name, value in trial.notes.items():
        result.notes.setdefault(name, []).append(round(value, 3))

# SPDX-License-Identifier: Apache-2.0
"""Watch: measures this rank at intervals, exchanges windows with the other ranks, and reports stragglers.

A thread of its own does so, through the job's store: each rank writes its latest window, rank 0 reads the windows of
all ranks and judges them, and all other ranks read its verdict. The exchange adds no collective, and no step waits for
it. The clocks of hosts are about equal, so all ranks begin to measure at the same multiples of the interval. Their
windows thus contain the same steps.

Threads: the training thread makes a watch and asks for findings. The rest runs on the watch's thread. It keeps no watch
alive between two intervals, so it ends soon after the wrapper is gone.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from agspeed.distributed import groups, metrics
from agspeed.distributed.messages import MessageError, count, text
from agspeed.distributed.rank_group import RankGroup
from agspeed.distributed.room import room_of
from agspeed.distributed.stragglers.judge import KINDS, Finding, Judge
from agspeed.distributed.stragglers.processor_time import ProcessorTime
from agspeed.distributed.stragglers.sentences import sentence
from agspeed.distributed.stragglers.step_meter import StepMeter
from agspeed.distributed.stragglers.windows import MOST_LETTERS, RailRate, Window, flag, number
from agspeed.log import logger, warn_once
from agspeed.torch_compat import modules

_MOST_FAILURES = 3
"""A watch ends after this number of rounds in a row in which the store has failed."""
_MOST_FINDINGS, _MOST_NUMBER, _MOST_SHARE = 1024, 1 << 62, 1e6
_POLL_S = 0.5


@dataclass(frozen=True)
class Verdict:
    """The findings of rank 0: findings that last, and the latest ones that have ended."""

    rounds: int = 0
    lasting: tuple[Finding, ...] = ()
    ended: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the verdict as a JSON value."""
        return dataclasses.asdict(self)

    @staticmethod
    def parse(found: Any) -> Verdict:
        """Reverses `to_json`. Raises: ValueError, TypeError or KeyError for anything that rank 0 does not write."""
        return Verdict(count(found["rounds"], _MOST_NUMBER), _findings(found["lasting"]), _findings(found["ended"]))


class Watch:
    """One rank's part in watching the ranks around one wrapper. All ranks make it in the same training forward."""

    def __init__(
        self, group: RankGroup, wrapper: DistributedDataParallel, module: nn.Module, is_tuning: Callable[[], bool]
    ) -> None:
        """module: the optimized module inside `wrapper`. is_tuning: a method; returns whether candidates are tried."""
        self.verdict = Verdict()
        self.meter = StepMeter(wrapper)
        self._rank, self._size = group.rank, group.size
        self._group, self._module = weakref.ref(group), weakref.ref(module)
        self._is_tuning = weakref.WeakMethod(is_tuning)
        self._room, _ = room_of(group.process_group, "stragglers")
        self._judge, self._seen = Judge(), [0] * group.size
        self._processor_time = ProcessorTime()
        self._number = self._num_failures = 0

    def start(self, interval_s: float) -> None:
        """Starts the thread, which measures at multiples of the interval."""
        threading.Thread(
            target=_watch, args=(weakref.ref(self), self.meter.is_done, interval_s), name="agspeed-ranks", daemon=True
        ).start()

    # --- on the watch's thread ----------------------------------------------------------------------------------------

    def begin_round(self) -> bool:
        """Exchanges what was measured in the last round, and begins to measure. Returns whether the watch goes on."""
        module = self._module()
        if module is None or modules.entry(module) is None:  # the model was restored
            return False
        return self._attempt(self._exchange) and self.meter.begin()

    def end_round(self) -> bool:
        """Writes this rank's window if there is one. Returns whether the watch goes on."""
        return self._attempt(self._write_window)

    def _attempt(self, part: Callable[[], None]) -> bool:
        try:
            part()
            self._num_failures = 0
        except MessageError as error:
            warn_once(("stragglers", str(error)), f"{error}; the ranks are not compared")
            return False
        except Exception as error:  # the store or the group is gone; the user's own collectives will report it
            self._num_failures += 1
            logger.debug("no windows were exchanged", exc_info=True)
            if self._num_failures == _MOST_FAILURES:
                logger.info("the ranks are compared no longer: %s: %s", type(error).__name__, error)
        return self._num_failures < _MOST_FAILURES

    def _exchange(self) -> None:
        if self._rank != 0:
            self.verdict = self._room.find("verdict", Verdict.parse) or self.verdict
            return
        windows = self._room.find_all([f"window/{rank}" for rank in range(self._size)], Window.parse)
        if windows is None or any(new.number <= seen for new, seen in zip(windows, self._seen, strict=True)):
            return
        self._seen = [window.number for window in windows]
        changes = self._judge.add(windows)
        self.verdict = Verdict(self._judge.num_rounds, tuple(self._judge.findings), tuple(self._judge.ended))
        for finding in changes:
            logger.warning("%s", sentence(finding))
        self._room.put("verdict", self.verdict.to_json())

    def _write_window(self) -> None:
        measured, group, is_tuning = self.meter.measured, self._group(), self._is_tuning()
        starved = self._processor_time.starved()
        if measured is None or group is None:
            return
        self._number += 1
        window = Window(
            self._number,
            socket.gethostname(),
            starved=starved,
            is_tuning=is_tuning is not None and is_tuning(),
            rails=_rails(group.process_group),
            **dataclasses.asdict(measured),
        )
        self._room.put(f"window/{self._rank}", window.to_json())


def _watch(reference: weakref.ref[Watch], is_done: threading.Event, interval_s: float) -> None:
    """Runs a watch until it ends or no longer exists."""
    while True:
        time.sleep(interval_s - time.time() % interval_s)
        watch = reference()
        if watch is None or not watch.begin_round():
            return
        del watch
        while not is_done.wait(_POLL_S):
            if reference() is None:
                return
        watch = reference()
        if watch is None or not watch.end_round():
            return
        del watch


def _rails(process_group: Any) -> tuple[RailRate, ...]:
    if groups.backend_of(process_group) != "agspeed":
        return ()
    rails = metrics.counters(process_group)["rails"]
    return tuple(RailRate(rail["interface"] or rail["address"], rail["bytes_per_second"]) for rail in rails)


def prometheus_lines(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Formats the findings that last as a metric."""
    text = "How much longer a rank computes, the part of a step that it waits for input, or what is left of its rail."
    rows = (
        (
            {"kind": finding.kind, "rank": str(finding.rank), "host": finding.host, "interface": finding.rail},
            finding.share,
        )
        for verdict in verdicts
        for finding in verdict.lasting
    )
    return metrics.metric("agspeed_straggler_share", "gauge", text, rows)


def _findings(found: Any) -> tuple[Finding, ...]:
    if not isinstance(found, list) or len(found) > _MOST_FINDINGS:
        raise ValueError(f"no list of at most {_MOST_FINDINGS} findings")
    return tuple(map(_finding, found))


def _finding(found: Any) -> Finding:
    kind: Any = text(found["kind"], MOST_LETTERS, "|".join(KINDS))
    until = found["until_step"]
    return Finding(
        kind,
        count(found["rank"], _MOST_NUMBER),
        text(found["host"], MOST_LETTERS),
        number(found["share"], _MOST_SHARE),
        count(found["since_step"], _MOST_NUMBER),
        text(found["rail"], MOST_LETTERS),
        None if until is None else count(until, _MOST_NUMBER),
        max(1, count(found["num_ranks"], _MOST_NUMBER)),
        flag(found["is_starved"]),
    )

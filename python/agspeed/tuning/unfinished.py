# SPDX-License-Identifier: Apache-2.0
"""UnfinishedTuning: stores the results of tuning on disk before a decision, so that the next process continues with
them.

It stores the pairs of each arm, the arms that lost, and the candidates that were refused on a region. A candidate is
refused if the gate rejects it or if it fails to compile or run, except for a temporary lack of the machine. Results
hold only for graphs of the same content: a region is identified by the digest of its graph, and pairs count only after
a process has captured exactly the regions with which they were measured.

Each record replaces the one before it in one transaction (runtime/tune/store/database_format.md): if a process is
killed while it writes, the earlier record stays. Refusals are written at once. Finished blocks are written less often,
so that writing takes at most one percent of the time. Everything is written when the process ends. Training thread
only.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import TYPE_CHECKING

from agspeed.log import logger
from agspeed.regions.outcome import Outcome, may_pass
from agspeed.regions.state import REFUSED, State
from agspeed.reporting import parts
from agspeed.reporting.parts import Json
from agspeed.tuning.decision_store import DecisionStore
from agspeed.tuning.steerable import Steerable

if TYPE_CHECKING:
    from agspeed._native import GroupTuner, Tuner

FORMAT = 1
SHARE = 0.01
"""The fraction of the time that writing may take."""
_MAX_REFUSALS = 1000

_open: weakref.WeakSet[UnfinishedTuning] = weakref.WeakSet()


class UnfinishedTuning:
    """The unfinished tuning of one controller. It does nothing before `begin` and after `end`."""

    _tuner: Tuner | GroupTuner
    """Set by `begin`."""

    def __init__(self, session: Steerable) -> None:
        self.note: str | None = None
        """A sentence that says why the earlier record is not used, or why a later process must not use this process's
        decision."""
        self.is_passing = False
        """Whether the decision is for this process alone."""
        self._session = session
        self._store: DecisionStore | None = None
        self._owner = os.getpid()
        self._earlier: Json | None = None
        """Pairs of an earlier process, with their regions, until this process resumes with them."""
        self._refusals: dict[tuple[str, str], Json] = {}
        self._num_recalled = 0
        self._is_touched, self._is_urgent = False, False
        self._num_stored, self._due = 0, 0.0

    def begin(self, tuner: Tuner | GroupTuner, store: DecisionStore, record: Json | None) -> None:
        """Begins. record: the store's record: of an unfinished tuning, of a decision, or None."""
        self._tuner, self._store = tuner, store
        if record is not None and record.get("arm") == "":
            self._read(record)
        _open.add(self)

    def recall(self) -> None:
        """Marks, in regions captured since the last call, the candidates that an earlier process refused for them."""
        for region in self._session.regions[self._num_recalled :]:
            for (key, name), refusal in self._refusals.items():
                if key == region.key and name not in region.outcomes:
                    region.outcomes[name] = _outcome(refusal)
        self._num_recalled = len(self._session.regions)

    def resume(self) -> None:
        """Passes an earlier process's pairs to the tuner if they were measured with exactly the present regions."""
        if self._earlier is None or self._earlier["regions"] != self._region_keys():
            return
        findings, self._earlier = self._earlier["tuner"], None
        try:
            self._tuner.resume(findings)
            logger.info("resumed: %s of an earlier run", _pairs(_num_pairs(findings)))
        except ValueError as error:
            self._ignore(str(error))

    def touch(self) -> None:
        """Notes that a candidate may have been refused since the last call of `keep`."""
        self._is_touched = True

    def keep(self, *, at_once: bool = False) -> None:
        """Writes new results, either now (`at_once`, or a new refusal) or when the next write is due."""
        if self._store is None:
            return
        if self._is_touched:
            self._is_touched = False
            self._is_urgent |= self._note_refusals()
        is_new = self._is_urgent or self._tuner.num_findings != self._num_stored
        if is_new and (at_once or self._is_urgent or time.perf_counter() >= self._due):
            self._write(self._store)

    def _write(self, store: DecisionStore) -> None:
        """Writes the record. If the database refuses it, because another process locks it or has decided, the next
        write tries again."""
        begun = time.perf_counter()
        num_findings, self._is_urgent = self._tuner.num_findings, False
        if store.store_unfinished(self._record()):
            self._num_stored = num_findings
        seconds = time.perf_counter() - begun
        self._tuner.paused(seconds)
        self._due = begun + seconds / SHARE

    def keep_at_exit(self) -> None:
        """Calls `keep` in the process that tunes. Forked children skip it: they have no results of their own."""
        if os.getpid() == self._owner:
            self.keep(at_once=True)

    def end(self, passing: str | None = None) -> None:
        """Ends storing after the decision. passing: a temporary reason that influenced the decision, if there is one.
        The results are then stored once more, and the next process continues from them.
        """
        if passing is not None:
            self.is_passing = True
            self.note = f"the decision is for this run alone, as the next one may do better: {passing}"
            logger.warning("%s", self.note)
            self.keep(at_once=True)
        self._store = None
        _open.discard(self)

    def describe(self) -> str:
        """Returns a sentence that says which results are stored and how they will be used."""
        if self._store is None or not self._store.is_usable:
            return "nothing could be kept, as no cache directory can be written to"
        pairs, refused = _pairs(_num_pairs(self._best()["tuner"])), len(self._refusals)
        also = f" and {refused} refused candidate{'s' if refused > 1 else ''}" if refused else ""
        return f"{pairs}{also} kept, with which the next run resumes"

    def _read(self, record: Json) -> None:
        try:
            body = _checked(record.get("unfinished"))
        except ValueError as error:
            self._ignore(str(error))
            return
        self._earlier = {"regions": body["regions"], "tuner": body["tuner"]}
        lasting = [entry for entry in body["refusals"] if not may_pass(entry["reason"])]
        self._refusals = {(entry["region"], entry["candidate"]): entry for entry in lasting}

    def _ignore(self, reason: str) -> None:
        self._earlier = None
        self.note = f"the unfinished tuning of an earlier run is ignored: {reason}"
        logger.info("%s", self.note)

    def _note_refusals(self) -> bool:
        """Collects refusals from the regions. Returns whether there are new ones."""
        before = len(self._refusals)
        for region in self._session.regions:
            for name, outcome in region.outcomes.items():
                is_lasting = outcome.state in REFUSED and not may_pass(outcome.reason)
                if is_lasting and len(self._refusals) < _MAX_REFUSALS:
                    self._refusals.setdefault((region.key, name), _refusal(region.key, outcome))
        return len(self._refusals) > before

    def _record(self) -> Json:
        body = {"format": FORMAT, **self._best(), "refusals": list(self._refusals.values())}
        return {"arm": "", "capture_seconds": self._session.history.capture_seconds, "unfinished": body}

    def _best(self) -> Json:
        """Returns this process's pairs, or the earlier process's pairs if there are more of them and this process has
        not resumed with them yet."""
        own: Json = {"regions": self._region_keys(), "tuner": self._tuner.findings()}
        if self._earlier is not None and _weight(self._earlier["tuner"]) > _weight(own["tuner"]):
            return self._earlier
        return own

    def _region_keys(self) -> list[str]:
        return sorted(region.key for region in self._session.regions)


def _checked(body: object) -> Json:
    """Returns a valid unfinished record unchanged. Raises: ValueError with the reason if it is invalid."""
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        found = body.get("format") if isinstance(body, dict) else None
        raise ValueError(f"it has format {found!r}, this agspeed reads {FORMAT}")
    tuner, regions, refusals = body.get("tuner"), body.get("regions"), body.get("refusals")
    if not isinstance(tuner, dict) or not _are(dict, tuner.get("arms")) or not _are(str, regions):
        raise ValueError("it lacks the pairs of its arms, or the regions that they belong to")
    measured = [duel for arm in tuner["arms"] for duel in (arm, arm.get("duel", {"pairs": []}))]
    if not _are(dict, measured) or any(not isinstance(part.get("pairs"), list) for part in measured):
        raise ValueError("an arm lacks its pairs")
    if not isinstance(refusals, list) or not all(_is_refusal(entry) for entry in refusals):
        raise ValueError("it lists a refusal without region, candidate, state or reason")
    return body


def _are(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _is_refusal(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    texts = (entry.get(name) for name in ("region", "candidate", "reason"))
    return all(isinstance(text, str) for text in texts) and entry.get("state") in REFUSED


def _refusal(key: str, outcome: Outcome) -> Json:
    is_wrong = outcome.gate.get("verdict") == "rejected"
    shown = {"candidate": outcome.candidate, "state": outcome.state, "reason": outcome.reason}
    return {"region": key, **shown, "wrong": is_wrong}


def _outcome(refusal: Json) -> Outcome:
    reason = f"{refusal['reason']} (found in an earlier run)"
    gate = parts.gate("rejected", reason=reason) if refusal.get("wrong") is True else {}
    return Outcome(refusal["candidate"], State(refusal["state"]), reason, gate=gate)


def _weight(findings: Json) -> tuple[int, int]:
    return _num_pairs(findings), len(findings["arms"])


def _num_pairs(findings: Json) -> int:
    return sum(len(arm["pairs"]) + len(arm.get("duel", {}).get("pairs", [])) for arm in findings["arms"])


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


@atexit.register
def _keep_all() -> None:
    """Stores all measured results at exit."""
    for unfinished in list(_open):
        unfinished.keep_at_exit()

# SPDX-License-Identifier: Apache-2.0
"""UnfinishedTuning: what tuning finds out before it decides is kept on disk, and the next process goes on from it.

Kept are the pairs of each arm, the arms that lost, and the candidates that were refused on a region: by the gate, or
because they failed to compile or to run, but for what the machine lacked at that time. Both hold for graphs of the same
content only: a region is known by the digest of its graph, and pairs count once a process has captured exactly the
regions that they were measured with.

The record replaces the one before it (runtime/tune/store/database_format.md), in one transaction: a process that is
killed while it writes leaves the earlier one. Refusals are written at once, finished blocks so that writing takes one
percent of the time at most, all of it when the process ends. Training thread only.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Mapping
from typing import Any

from agspeed.log import logger
from agspeed.reporting import parts
from agspeed.tuning.decision_store import DecisionStore
from agspeed.tuning.outcome import Outcome, may_pass
from agspeed.tuning.steerable import Steerable

FORMAT = 1
SHARE = 0.01
"""Of the time, for writing."""
_REFUSED = ("rejected", "failed")
_MAX_REFUSALS = 1000

Json = dict[str, Any]
_open: weakref.WeakSet[UnfinishedTuning] = weakref.WeakSet()


class UnfinishedTuning:
    """See the module's text. One per controller; it does nothing before `begin` and after `end`."""

    def __init__(self, session: Steerable) -> None:
        self.note: str | None = None
        """Why the earlier record is of no use, or this process's decision to a later one, as a sentence."""
        self._is_passing = False
        self._session = session
        self._tuner: Any = None
        self._store: DecisionStore | None = None
        self._owner = os.getpid()
        self._earlier: Json | None = None
        """Pairs of an earlier process, with the regions they belong to, until they are taken up."""
        self._refusals: dict[tuple[str, str], Json] = {}
        self._num_recalled = 0
        self._is_touched, self._is_urgent = False, False
        self._num_stored, self._due = 0, 0.0

    def begin(self, tuner: Any, store: DecisionStore, record: Json | None) -> None:
        """Tuning begins. record: what the store holds: of an unfinished tuning, a decision, or None."""
        self._tuner, self._store = tuner, store
        if record is not None and record.get("arm") == "":
            self._read(record)
        _open.add(self)

    def recall(self) -> None:
        """Regions captured since the last call learn which candidates an earlier process refused for them."""
        for region in self._session.regions[self._num_recalled :]:
            for (key, name), refusal in self._refusals.items():
                if key == region.key and name not in region.outcomes:
                    region.outcomes[name] = _outcome(refusal)
        self._num_recalled = len(self._session.regions)

    def resume(self) -> None:
        """The pairs of an earlier process count from now on, if they were measured with the regions that there are."""
        if self._earlier is None or self._earlier["regions"] != self._region_keys():
            return
        findings, self._earlier = self._earlier["tuner"], None
        try:
            self._tuner.resume(findings)
            logger.info("resumed: %s of an earlier run", _pairs(_num_pairs(findings)))
        except ValueError as error:
            self._ignore(str(error))

    def touch(self) -> None:
        """A candidate may have been refused since `keep` was called last."""
        self._is_touched = True

    def keep(self, *, at_once: bool = False) -> None:
        """Writes what was found out since the last time, now or when it is due."""
        if self._store is None:
            return
        if self._is_touched:
            self._is_touched = False
            self._is_urgent |= self._note_refusals()
        is_new = self._is_urgent or self._tuner.num_findings != self._num_stored
        if is_new and (at_once or self._is_urgent or time.perf_counter() >= self._due):
            self._write(self._store)

    def _write(self, store: DecisionStore) -> None:
        """What the database does not take, as another process locks it or has decided, is for the next time."""
        begun = time.perf_counter()
        num_findings, self._is_urgent = self._tuner.num_findings, False
        if store.store_unfinished(self._record()):
            self._num_stored = num_findings
        seconds = time.perf_counter() - begun
        self._tuner.paused(seconds)
        self._due = begun + seconds / SHARE

    def keep_at_exit(self) -> None:
        """`keep`, in the process that tunes; a child that it has forked knows nothing of its own."""
        if os.getpid() == self._owner:
            self.keep(at_once=True)

    def end(self, passing: str | None = None) -> None:
        """Something is decided: nothing is left to be kept. passing: what the decision rests on that may be otherwise
        for the next process, which goes on from what was measured then.
        """
        if passing is not None:
            self._is_passing = True
            self.note = f"the decision is for this run alone, as the next one may do better: {passing}"
            logger.warning("%s", self.note)
            self.keep(at_once=True)
        self._store = None
        _open.discard(self)

    def shown(self) -> Json:
        """For the report: the `note`, and whether a decision was taken that later processes are not to have."""
        return {"note": self.note, "is_passing": self._is_passing}

    def describe(self) -> str:
        """What is kept and what becomes of it, as a sentence."""
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
        """Returns whether there are more than before."""
        before = len(self._refusals)
        for region in self._session.regions:
            for name, outcome in region.outcomes.items():
                is_lasting = outcome.state in _REFUSED and not may_pass(outcome.reason)
                if is_lasting and len(self._refusals) < _MAX_REFUSALS:
                    self._refusals.setdefault((region.key, name), _refusal(region.key, outcome))
        return len(self._refusals) > before

    def _record(self) -> Json:
        body = {"format": FORMAT, **self._best(), "refusals": list(self._refusals.values())}
        return {"arm": "", "capture_seconds": self._session.history.capture_seconds, "unfinished": body}

    def _best(self) -> Json:
        """This process's pairs, or an earlier one's where those are more and could not be taken up yet."""
        own = {"regions": self._region_keys(), "tuner": self._tuner.findings()}
        if self._earlier is not None and _weight(self._earlier["tuner"]) > _weight(own["tuner"]):
            return self._earlier
        return own

    def _region_keys(self) -> list[str]:
        return sorted(region.key for region in self._session.regions)


def _checked(body: Any) -> Json:
    """Raises: ValueError with the reason where an unfinished record is not of this format."""
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


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _is_refusal(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    texts = (entry.get(name) for name in ("region", "candidate", "reason"))
    return all(isinstance(text, str) for text in texts) and entry.get("state") in _REFUSED


def _refusal(key: str, outcome: Outcome) -> Json:
    is_wrong = outcome.gate.get("verdict") == "rejected"
    shown = {"candidate": outcome.candidate, "state": outcome.state, "reason": outcome.reason}
    return {"region": key, **shown, "wrong": is_wrong}


def _outcome(refusal: Mapping[str, Any]) -> Outcome:
    reason = f"{refusal['reason']} (found in an earlier run)"
    gate = parts.gate("rejected", reason=reason) if refusal.get("wrong") is True else {}
    return Outcome(refusal["candidate"], refusal["state"], reason, gate=gate)


def _weight(findings: Mapping[str, Any]) -> tuple[int, int]:
    return _num_pairs(findings), len(findings["arms"])


def _num_pairs(findings: Mapping[str, Any]) -> int:
    return sum(len(arm["pairs"]) + len(arm.get("duel", {}).get("pairs", [])) for arm in findings["arms"])


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


@atexit.register
def _keep_all() -> None:
    """An exit loses nothing that was measured."""
    for unfinished in list(_open):
        unfinished.keep_at_exit()

# SPDX-License-Identifier: Apache-2.0
"""Reads the decisions of earlier processes from the tuning database and stores the session's own decision there.

If the file cannot be used, there is one warning and no decisions; training never depends on it. Training thread only.
"""

from __future__ import annotations

import time
from pathlib import Path

from agspeed import native
from agspeed.config import Settings
from agspeed.config.paths import DATABASE
from agspeed.errors import AgspeedError
from agspeed.log import warn_once
from agspeed.reporting.parts import Json
from agspeed.tuning.stored_decision import why_no_record


class DecisionStore:
    """The tuning database below ``cache_dir``, for one key. Requires the native extension."""

    def __init__(self, settings: Settings, key: Json) -> None:
        module = native.load()
        assert module is not None
        self.key = key
        self._database = module.TuningDatabase(str(Path(settings.cache_dir) / DATABASE))
        if self._database.warning:
            warn_once(("database", str(settings.cache_dir)), self._database.warning)

    @property
    def is_usable(self) -> bool:
        """True when decisions can be stored."""
        return bool(self._database.is_usable)

    def find(self) -> Json | None:
        """Returns the decision of an earlier process. If that process ended before it decided, "arm" is empty and the
        record holds its results so far. None if there is no record, or with one warning if the record is invalid.
        """
        record: Json | None = self._database.find(self.key, int(time.time()))
        if record is None or (reason := why_no_record(record)) is None:
            return record
        warn_once(("database", "record"), f"a record of {self._database.path} is ignored: it {reason}")
        return None

    def store_unfinished(self, record: Json) -> bool:
        """Stores results from before a decision. Returns whether they were stored; a failure is only a warning."""
        try:
            return bool(self._database.store_unfinished(self.key, record, int(time.time())))
        except (AgspeedError, RuntimeError, ValueError) as error:
            warn_once(("database", "unfinished"), f"unfinished tuning could not be stored: {error}")
            return False

    def rows(self) -> list[Json]:
        """Returns all valid records, with their keys."""
        return [row for row in self._database.list() if row["intact"] and why_no_record(row["record"]) is None]

    def store(self, record: Json) -> None:
        """Stores a decision; a failure is only a warning."""
        if not self.is_usable:
            return
        try:
            self._database.store(self.key, record, int(time.time()))
        except (AgspeedError, RuntimeError, ValueError) as error:
            warn_once(("database", "store"), f"the decision could not be stored: {error}")

# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host that share a cache compile once: the lowest of them does it, the others take its child's answer and
find the code in the cache.

Whoever compiles holds a lock on a file, which the system releases when that process ends: another rank compiles then.
Answers are files beside the locks, in a private folder of this job that the last rank removes. No method blocks, and
without such a folder each rank compiles for itself. Training thread only.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import time
from typing import Any

from agspeed.backends import CompileOptions
from agspeed.distributed.greetings import Household
from agspeed.log import logger
from agspeed.private_folder import PrivateFolder
from agspeed.tuning.child import answers

_START_S = 5.0
"""For how long others wait for the lowest rank to begin."""
_MOST_BYTES = 1 << 20
"""Of an answer."""


class HostCompiles:
    """See the module's text. One per session."""

    def __init__(self, household: Household) -> None:
        self.is_first = household.is_first
        self._name = hashlib.sha256(household.token.encode()).hexdigest()[:16]
        self._folder: PrivateFolder | None = None
        self._claims: list[Claim] = []

    def claim(self, region_key: str, candidate: str, options: CompileOptions) -> Claim | None:
        """For one compile. Returns: None where nothing can be shared: it is to be compiled here."""
        text = "\n".join((region_key, candidate, json.dumps(dict(vars(options)), sort_keys=True, default=str)))
        try:
            folder = self._folder = self._folder or self._entered()
        except OSError as error:
            logger.debug("ranks of this host do not share compiles: %s", error)
            return None
        claim = Claim(folder, hashlib.sha256(text.encode()).hexdigest()[:24], self.is_first)
        self._claims.append(claim)
        return claim

    def close(self) -> None:
        """Lets go of what was not finished. All ranks close at the same step."""
        for claim in self._claims:
            claim.release()
        self._claims.clear()
        if self._folder is not None:
            atexit.unregister(self._folder.close)
            self._folder.close()
            self._folder = None

    def _entered(self) -> PrivateFolder:
        folder = PrivateFolder("host", self._name)
        atexit.register(folder.close)
        return folder


class Claim:
    """What one rank knows of one compile."""

    def __init__(self, folder: PrivateFolder, stem: str, is_first: bool) -> None:
        self._folder = folder
        self._lock, self._answer = f"{stem}.lock", f"{stem}.json"
        self._is_first, self._begun = is_first, time.monotonic()
        self._held = -1

    @property
    def is_mine(self) -> bool:
        """This rank compiles, and is to `tell` the others."""
        return self._held >= 0

    def look(self) -> dict[str, Any] | None:
        """The answer of the rank that compiles, None while there is none. That rank may be this one from now on."""
        if self.is_mine or (answer := self._found()) is not None:
            return None if self.is_mine else answer
        is_begun = self._is_first or self._folder.has(self._lock) or time.monotonic() - self._begun > _START_S
        if is_begun and self._is_locked() and (answer := self._found()) is not None:
            self.release()  # told just before
            return answer
        return None

    def tell(self, answer: dict[str, Any]) -> None:
        """The others may have it."""
        try:
            self._folder.write(self._answer, json.dumps(answer).encode())
        except OSError as error:  # they compile for themselves
            logger.debug("the answer of a compile cannot be shared: %s", error)
        self.release()

    def release(self) -> None:
        """Another rank may compile."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _found(self) -> dict[str, Any] | None:
        try:
            content = self._folder.read(self._answer, _MOST_BYTES)
        except OSError:
            return None
        return answers.understood(answers.read(content)) if content is not None else None

    def _is_locked(self) -> bool:
        """Takes the lock, unless another process has it."""
        try:
            self._held = self._folder.descriptor_of(self._lock, os.O_RDWR)
            fcntl.lockf(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process: its forks do not hold it
        except BlockingIOError:
            self.release()
        except OSError as error:  # no locks here: everybody compiles
            logger.debug("ranks of this host cannot lock %s: %s", self._lock, error)
            with contextlib.suppress(OSError):
                self._held = os.open(os.devnull, os.O_RDONLY)
        return self.is_mine

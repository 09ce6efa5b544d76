# SPDX-License-Identifier: Apache-2.0
"""Makes ranks of one host that share a cache compile each candidate once. The lowest rank compiles it. The other ranks
take the answer of that rank's child and find the code in the cache.

The rank that compiles holds a lock on a file. If its process ends, the system releases the lock and another rank
compiles. Answers are files beside the locks, in a private folder of this job. The last rank removes the folder. No
method blocks. If the folder cannot be used, each rank compiles for itself. Training thread only.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import time

from agspeed.backends import CompileOptions
from agspeed.distributed.announcements import HostGroup
from agspeed.log import logger
from agspeed.private_folder import PrivateFolder
from agspeed.tuning.child import answers
from agspeed.tuning.child.answers import Answer

_START_S = 5.0
"""How long the other ranks wait for the lowest rank to begin."""
_MOST_BYTES = 1 << 20
"""The largest answer that is read."""


class HostCompiles:
    """One session's part in the shared compiles of its host."""

    def __init__(self, host_group: HostGroup) -> None:
        self.is_first = host_group.is_first
        self._name = hashlib.sha256(host_group.token.encode()).hexdigest()[:16]
        self._folder: PrivateFolder | None = None
        self._claims: list[Claim] = []

    def claim(self, region_key: str, candidate: str, options: CompileOptions) -> Claim | None:
        """Returns the claim for one compile; None if it cannot be shared, in which case this rank compiles it."""
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
        """Releases all unfinished claims and the folder. All ranks close at the same step."""
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
    """One rank's state of one shared compile."""

    def __init__(self, folder: PrivateFolder, stem: str, is_first: bool) -> None:
        self._folder = folder
        self._lock, self._answer = f"{stem}.lock", f"{stem}.json"
        self._is_first, self._begun = is_first, time.monotonic()
        self._held = -1

    @property
    def is_mine(self) -> bool:
        """True if this rank compiles. It must then call `tell`."""
        return self._held >= 0

    def look(self) -> Answer | None:
        """Returns the answer of the rank that compiles; None while there is none. This call may make this rank the one
        that compiles: check `is_mine` afterwards."""
        if self.is_mine or (answer := self._found()) is not None:
            return None if self.is_mine else answer
        is_begun = self._is_first or self._folder.has(self._lock) or time.monotonic() - self._begun > _START_S
        if is_begun and self._is_locked() and (answer := self._found()) is not None:
            self.release()  # the answer arrived just before this rank took the lock
            return answer
        return None

    def tell(self, answer: Answer) -> None:
        """Publishes this rank's answer to the other ranks and releases the lock."""
        try:
            self._folder.write(self._answer, json.dumps(answer).encode())
        except OSError as error:  # the other ranks compile for themselves
            logger.debug("the answer of a compile cannot be shared: %s", error)
        self.release()

    def release(self) -> None:
        """Releases the lock, so that another rank may compile."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _found(self) -> Answer | None:
        try:
            content = self._folder.read(self._answer, _MOST_BYTES)
        except OSError:
            return None
        return answers.understood(answers.read(content)) if content is not None else None

    def _is_locked(self) -> bool:
        """Takes the lock unless another process has it. Returns: whether this rank compiles now."""
        try:
            self._held = self._folder.descriptor_of(self._lock, os.O_RDWR)
            fcntl.lockf(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a lock that forked processes do not inherit
        except BlockingIOError:
            self.release()
        except OSError as error:  # a file system without locks: every rank compiles
            logger.debug("ranks of this host cannot lock %s: %s", self._lock, error)
            with contextlib.suppress(OSError):
                self._held = os.open(os.devnull, os.O_RDONLY)
        return self.is_mine

# SPDX-License-Identifier: Apache-2.0
"""Ranks that stand still together: whoever is through with a capture or a load waits for the others in the job's store,
where no collective runs out of its time meanwhile.

A rank that is still at it says so once a second, from a thread of its own. The others wait for as long as somebody
does, at most two minutes; then training goes on, and waits in its next reduction for as long as that may take. Requests
are made in such waits alone. Training thread, but for that one.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from agspeed.distributed.greetings import answered
from agspeed.log import logger

_BEAT_S = 1.0
_SILENCE_S = 5.0
"""After which nobody is at it any more, or who is cannot say so."""
LONGEST_S = 120.0
_POLLS_S = (0.005, 0.1)
"""Between looks: at first, and at most."""


class Standstill:
    """Of one rank. All ranks `begin` and `end` equally often."""

    def __init__(self, store: Any, num_ranks: int) -> None:
        self._store, self._num_ranks = store, num_ranks
        self._number = 0
        self._through: threading.Event | None = None

    @property
    def is_begun(self) -> bool:
        return self._through is not None

    def begin(self) -> None:
        """This rank will be busy; until it is through, others are told."""
        if self._through is not None or self._num_ranks == 0:
            return
        self._number += 1
        self._through = threading.Event()
        arguments = (self._store, f"beat/{self._number}", self._through)
        threading.Thread(target=_beat, args=arguments, name="agspeed-standstill", daemon=True).start()

    def end(self) -> None:
        """This rank is through, and waits for the others. Never raises; a store that fails ends all such waits."""
        through, self._through = self._through, None
        if through is None:
            return
        through.set()
        try:
            answered(lambda: self._store.add(f"through/{self._number}", 1))
            self._wait()
        except Exception as error:
            logger.debug("ranks no longer wait for each other: %s", error)
            self._num_ranks = 0

    def _wait(self) -> None:
        begun = heard = time.monotonic()
        beats, pause = -1, _POLLS_S[0]
        while (now := time.monotonic()) < min(heard + _SILENCE_S, begun + LONGEST_S):
            found = answered(lambda: self._store.add(f"beat/{self._number}", 0))
            if answered(lambda: self._store.add(f"through/{self._number}", 0)) >= self._num_ranks:
                return
            beats, heard = found, (now if found != beats else heard)
            time.sleep(pause)
            pause = min(2 * pause, _POLLS_S[1])
        logger.info("ranks train on before the last one is through with what it does")


def _beat(store: Any, key: str, through: threading.Event) -> None:
    try:
        for _ in range(int(LONGEST_S / _BEAT_S)):
            if through.wait(_BEAT_S):
                return
            store.add(key, 1)
    except Exception:  # the others wait less long
        logger.debug("no beats", exc_info=True)

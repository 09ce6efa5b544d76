# SPDX-License-Identifier: Apache-2.0
"""RetainedMemory: blocks of freed tensors that agspeed keeps for the next step, for the whole process.

The C library returns large blocks to the kernel, which then maps and clears their pages again in the next step. The
allocator of runtime/aten/cpu_allocator.h keeps them. It lies under all plans, eager included. As it belongs to the
process, only one session at a time decides about it: the first one that wants to try it. All other sessions run with
the choice of that session.

Threads: the GIL is the only lock. Training threads switch it, between two steps.
"""

from __future__ import annotations

import resource
import weakref

from agspeed import native
from agspeed.config import Settings
from agspeed.log import warn_once
from agspeed.reporting import environment, format
from agspeed.reporting.parts import Json

_SHARE_OF_MEMORY = 2
"""By default, idle blocks take at most one part in this number of the memory that the process may use."""


class RetainedMemory:
    """The process's one object of this class is `RETAINED`."""

    def __init__(self) -> None:
        self._owner: weakref.ref[object] | None = None
        self._limits = (0, 0)
        self._is_wanted = self._is_paused = self._is_on = False

    def why_not(self, user: object, settings: Settings) -> str | None:
        """Returns why `user` must not try the allocator, as a sentence without its full stop; None if it may."""
        if settings.retained_memory_mib == 0:
            return "the setting retained_memory_mib is 0"
        owner = self._owner() if self._owner is not None else None
        if owner is not None and owner is not user:
            return "another model of this process decides about it"
        module = native.load()
        if module is None:
            return native.why_missing()
        reason: str = module.why_memory_is_not_retained()
        return reason or None

    def reserve(self, user: object, settings: Settings) -> None:
        """Lets `user` switch the allocator until it leaves or is freed. Requires: `why_not` returns None."""
        self._owner = weakref.ref(user, self._owner_ended)
        self._limits = limits(settings.retained_memory_mib)

    def want(self, user: object, is_wanted: bool) -> None:
        """Switches the allocator for `user`. Does nothing for an object that has not reserved it."""
        if self._owner is not None and self._owner() is user:
            self._is_wanted = is_wanted
            self._switch()

    def leave(self, user: object) -> None:
        """Ends the use by `user`: torch's own allocator serves all requests again."""
        if self._owner is not None and self._owner() is user:
            self._owner_ended(self._owner)

    def set_paused(self, is_paused: bool) -> None:
        """While paused, torch's own allocator serves all requests."""
        self._is_paused = is_paused
        self._switch()

    def is_on_for(self, user: object) -> bool:
        """Returns whether the allocator is on because `user` wants it."""
        return self._is_on and self._owner is not None and self._owner() is user

    def describe(self) -> Json:
        """Returns {"is_on", "held_bytes", "limit_bytes"}: whether blocks are kept now, and the bytes of idle blocks."""
        module = native.load() if self._is_on else None
        held = module.retained_memory()["idle_bytes"] if module is not None else 0
        return {"is_on": self._is_on, "held_bytes": held, "limit_bytes": self._limits[0] if self._is_on else None}

    def sentence(self) -> str:
        """Returns a sentence about the kept blocks, without its full stop; "" while none are kept."""
        if not self._is_on:
            return ""
        described = self.describe()
        held, limit = format.size(described["held_bytes"]), format.size(described["limit_bytes"])
        return f"freed tensors keep their memory for the next step: {held} now, at most {limit}"

    def _owner_ended(self, owner: weakref.ref[object]) -> None:
        if self._owner is owner:
            self._owner, self._is_wanted = None, False
            self._switch()

    def _switch(self) -> None:
        is_wanted = self._is_wanted and not self._is_paused
        module = native.load() if is_wanted != self._is_on else None
        if module is None:
            return
        if not is_wanted:
            module.release_memory()
        elif reason := module.retain_memory(*self._limits):
            warn_once(("retained_memory", reason), f"memory is not retained: {reason}")
            return
        self._is_on = is_wanted


def limits(mib: int | None) -> tuple[int, int]:
    """Returns the most bytes of idle blocks, and the most bytes by which they may raise the peak.

    The peak of the process may rise by half of the memory that is left beside its present peak. So retained memory does
    not exhaust memory that was enough without it.

    Args:
        mib: the setting ``retained_memory_mib``; None: half of the memory that this process may use.
    """
    memory = environment.memory_bytes()
    idle = memory // _SHARE_OF_MEMORY if mib is None else mib << 20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return idle, max(0, memory - peak) // 2


RETAINED = RetainedMemory()

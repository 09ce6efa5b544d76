# SPDX-License-Identifier: Apache-2.0
"""What Horovod's scripts catch, by Horovod's names."""

from __future__ import annotations

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks called it differently, or one of them is lost."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name
    """Hosts were added or removed. skip_sync: they were only removed, so that no rank has to be told the state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were added or removed")
        self.skip_sync = skip_sync

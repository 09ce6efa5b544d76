# SPDX-License-Identifier: Apache-2.0
"""The exceptions that scripts for Horovod catch, under Horovod's names."""

from __future__ import annotations

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HorovodInternalError(RuntimeError):
    """A collective failed: ranks called it differently, or one of them is lost."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name
    """Hosts were added or removed. skip_sync: hosts were only removed, so every rank already has the state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts were added or removed")
        self.skip_sync = skip_sync

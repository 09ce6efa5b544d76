# SPDX-License-Identifier: Apache-2.0
"""What travels with a module's weights although it is not in its state_dict(): other parts of agspeed register it.

Threads: the training thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

__all__ = ["Attachment", "attach", "attachments"]


class Attachment(Protocol):
    """Something that belongs to modules."""

    def of(self, module: nn.Module) -> Any:
        """Returns what the process whose state the others take over sends: plain data, or None."""

    def put(self, module: nn.Module, value: Any) -> None:
        """Applies it, at all ranks and also at the sender, once the weights are equal."""


_attachments: list[Attachment] = []


def attach(attachment: Attachment) -> None:
    """Adds an attachment of all modules. Call it once per process for each kind."""
    _attachments.append(attachment)


def attachments() -> list[Attachment]:
    """In the same order in all processes of a job, which run the same script."""
    return list(_attachments)

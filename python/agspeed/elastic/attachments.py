# SPDX-License-Identifier: Apache-2.0
"""Data about a module that is sent beside its state_dict(). Other parts of agspeed register each kind of data.

Threads: the training thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

__all__ = ["Attachment", "attach", "attached", "put_attached"]


class Attachment(Protocol):
    """Something that belongs to modules."""

    def of(self, module: nn.Module) -> Any:
        """Returns this process's data for the others, which take over its state: plain values, or None."""

    def put(self, module: nn.Module, value: Any) -> None:
        """Applies it, at all ranks and also at the sender, once the weights are equal."""


_attachments: dict[str, Attachment] = {}


def attach(kind: str, attachment: Attachment) -> None:
    """Adds an attachment of all modules. Processes of a job may add it at different times."""
    _attachments[kind] = attachment


def attached(modules: dict[str, nn.Module]) -> dict[str, dict[str, Any]]:
    """Returns what this process sends, by kind and by the name of the module."""
    return {
        kind: {name: attachment.of(module) for name, module in modules.items()}
        for kind, attachment in _attachments.items()
    }


def put_attached(modules: dict[str, nn.Module], values: dict[str, dict[str, Any]]) -> None:
    """Applies what another process, or this one, has sent. Kinds that this process does not have are left out."""
    for kind, attachment in _attachments.items():
        for name, value in values.get(kind, {}).items():
            attachment.put(modules[name], value)

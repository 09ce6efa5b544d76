# SPDX-License-Identifier: Apache-2.0
"""The exceptions agspeed raises.

Every message is one or two sentences: what failed, with which values, and what to do next. Training code need not
catch any of these: after an error inside a compiled candidate the region runs eagerly instead, unless ``strict=True``
asks for the exception.
"""

from __future__ import annotations

__all__ = ["AgspeedError", "InternalError", "UnsupportedError", "UserError", "UserTypeError"]


class AgspeedError(Exception):
    """Base of everything agspeed raises on purpose."""


class UserError(AgspeedError, ValueError):
    """The caller passed a wrong value, path or setting. Nothing was changed before it was raised."""


class UserTypeError(UserError, TypeError):
    """A `UserError` for a value of a wrong type."""


class UnsupportedError(AgspeedError):
    """A candidate cannot express this graph. The region falls back to eager and says so once."""


class InternalError(AgspeedError):
    """A broken invariant of agspeed itself: please report it with the output of ``agspeed doctor --report FILE``."""

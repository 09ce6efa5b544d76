# SPDX-License-Identifier: Apache-2.0
"""How long loading agspeed takes, torch excepted: a cost of tuning, charged to the process's first session.

Imported before every other module of this package; `loaded` is called when the last one is there.
"""

from __future__ import annotations

import time

import torch  # noqa: F401  the user's program needs it in any case: what follows is agspeed's

_begun = time.perf_counter()
_unclaimed: list[float] = []


def loaded() -> None:
    """Everything is imported."""
    _unclaimed.append(time.perf_counter() - _begun)


def claim() -> float:
    """Seconds that loading took, for whoever asks first; 0 for everybody else."""
    return _unclaimed.pop() if _unclaimed else 0.0

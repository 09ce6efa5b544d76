# SPDX-License-Identifier: Apache-2.0
"""Training that goes on while processes come and go: `agspeed run --min-np 2 -np 4 python train.py`.

    from agspeed import elastic

    state = elastic.State(model=model, optimizer=optimizer, epoch=0)

    @elastic.run
    def train(state):
        model = DistributedDataParallel(state.model)
        ...
            optimizer.step()
            state.advance()

    train(state)

When a process is lost, `train` begins again in the others: in a smaller group, and with the newest state that any of
them has. At most one step is lost. A process that joins takes that state over. README.md says how.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agspeed.elastic.goodput import Goodput
    from agspeed.elastic.loop import run
    from agspeed.elastic.sampler import Sampler
    from agspeed.elastic.state import State

__all__ = ["Goodput", "Sampler", "State", "run"]

_HOMES = {"Goodput": "goodput", "Sampler": "sampler", "State": "state", "run": "loop"}


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use, because its module imports torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

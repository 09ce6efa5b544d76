# SPDX-License-Identifier: Apache-2.0
"""The variables in which torch looks for the rank of a process: a call just before it reads them.

`init_process_group` without a rank reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. torchrun sets them, and other
launchers do not. All needs exist since torch 2.11. Threads: as for torch itself.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from agspeed.torch_compat.part import Part

_RENDEZVOUS = "torch.distributed.rendezvous"
_SCHEME = "env"
PART = Part(
    "rank_variables",
    __name__,
    needs=(f"{_RENDEZVOUS}._rendezvous_handlers",),
    lost="scripts under srun and mpirun have to set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT themselves",
)


def set_before_use(set_variables: Callable[[], None]) -> None:
    """From now on, calls `set_variables` before torch reads the rank from the variables of this process.

    Its exceptions reach the caller of init_process_group. A script that passes its rank itself does not cause a call.
    Repeated calls change nothing.
    """
    rendezvous: Any = importlib.import_module(_RENDEZVOUS)
    if PART.misfit(may_import=True) is None:
        handlers = rendezvous._rendezvous_handlers
        if not hasattr(handlers[_SCHEME], "sets_variables"):
            handlers[_SCHEME] = _after(set_variables, handlers[_SCHEME])


def _after(set_variables: Callable[[], None], find_ranks: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(find_ranks)
    def set_and_find(url: str, **options: Any) -> Any:
        if not urlparse(url).query:
            set_variables()
        return find_ranks(url, **options)

    made: Any = set_and_find
    made.sets_variables = True
    return made

# SPDX-License-Identifier: Apache-2.0
"""The kinds of measurement: one module per kind, all with the same three functions.

`plan(case, threads, settings)` lists the processes to run one after another. A row with "cache": "fresh" starts from an
empty cache folder, which later rows share. `measure(spec)` runs inside such a process and returns JSON data.
`summarize(case, results)` turns their results into one cell of the report. A cell's "status" is "ok", "void" (the
control failed) or "failed". It gives the reason if it is not "ok".
"""

import importlib
from types import ModuleType

NAMES = (
    # keep-sorted
    "bytes",
    "codes",
    "comm",
    "elastic",
    "elastic_cost",
    "horovod",
    "losses",
    "native_compile",
    "nccl_net",
    "operators",
    "overhead",
    "published",
    "regret",
    "shared_process",
    "start",
    "steady",
    "time_to_speed",
    "warm_start",
)


def load(name: str) -> ModuleType:
    """Returns the module of a kind. Raises ValueError if there is none."""
    if name not in NAMES:
        raise ValueError(f"unknown kind {name!r}; known: {', '.join(NAMES)}")
    return importlib.import_module(f"{__name__}.{name}")

# SPDX-License-Identifier: Apache-2.0
"""The checks of `agspeed doctor --nccl`: the installed NCCL, whether agspeed's plug-in works here, and whether NCCL
would load it.

The rules of checks.py apply: functions without arguments that yield `Check`s, change nothing and never raise. A child
process loads the plug-in as NCCL does and sends a message to itself (nccl_probe.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from agspeed import nccl
from agspeed.cli.checks import Check
from agspeed.cli.nccl_probe import MESSAGE_BYTES
from agspeed.cli.probe import run_child

__all__ = ["NCCL_CHECKS", "table_of"]

_TIMEOUT_S = 60
_ASK_NET = "agspeed doctor --net says which interfaces are usable, and why"
_REINSTALL = "install the wheel, or build the target ag_nccl_net in a checkout"
_ENABLE = 'eval "$(agspeed nccl env)"'
# (Minor version of NCCL 2, the table that it takes from this version on), newest first.
_TABLES = ((30, 12), (28, 11), (26, 10), (24, 9), (20, 8), (19, 7), (13, 6))
_SCRIPT = """
import json
from agspeed.cli.nccl_probe import probe
print("PROBE" + json.dumps(probe(*ARGUMENTS)))
"""


def table_of(version: int) -> int | None:
    """Returns the newest table of agspeed's plug-in that this version of NCCL supports; None for older versions.
    version: 22809 for 2.28.9."""
    minor = version // 100 % 100
    if version < 20000:
        return None
    return next((table for least, table in _TABLES if minor >= least), None)


def _probe() -> dict[str, Any]:
    arguments = json.dumps([str(nccl.find_nccl() or "libnccl.so.2"), str(nccl.library())])
    code, output = run_child(_SCRIPT.replace("ARGUMENTS", arguments), _TIMEOUT_S)
    line = next((line for line in output.splitlines() if line.startswith("PROBE{")), None)
    if line is None:
        reason = f"a process that loads it ended with code {code}"
        return {"nccl_error": reason, "plugin_error": reason}
    found: dict[str, Any] = json.loads(line.removeprefix("PROBE"))
    return found


def check_nccl() -> Iterator[Check]:
    """Checks NCCL, the plug-in, and whether NCCL would choose it."""
    found = _probe()
    yield _version(found)
    yield _plugin(found)
    if found.get("init") == 0:
        yield _message(found)
    obstacles = nccl.obstacles(os.environ)
    for sentence in obstacles:
        yield Check("nccl's choice", "warn", sentence, _ENABLE if "NCCL_NET_PLUGIN" in sentence else "unset NCCL_NET")
    if not obstacles:
        yield Check("nccl's choice", "ok", "agspeed's plug-in; NCCL_DEBUG=INFO then says 'Using network agspeed'")


def _version(found: dict[str, Any]) -> Check:
    version = found.get("nccl")
    if version is None:
        detail = f"no NCCL can be loaded: {found.get('nccl_error', 'not found')}"
        return Check("nccl", "warn", detail, "install torch for CUDA, which brings it")
    name = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    table = table_of(version)
    if table is None:
        return Check(
            "nccl", "fail", f"{name} is older than 2.13, the least that agspeed's plug-in serves", "update torch"
        )
    return Check("nccl", "ok", f"{name} takes table v{table} of a network plug-in")


def _plugin(found: dict[str, Any]) -> Check:
    if not nccl.library().exists():
        return Check("nccl plug-in", "fail", f"{nccl.library()} does not exist", _REINSTALL)
    if "plugin_error" in found:
        return Check("nccl plug-in", "fail", f"it cannot be loaded: {found['plugin_error']}", _REINSTALL)
    if found["init"] != 0:
        return Check("nccl plug-in", "fail", found["said"], _ASK_NET)
    return Check("nccl plug-in", "ok", found["said"])


def _message(found: dict[str, Any]) -> Check:
    """Reports a message between two connections of one process. It tests sockets and the firewall, but not cables."""
    if not found["arrived"]:
        return Check("nccl message", "fail", f"none of this process to itself arrives: {found['why']}", _ASK_NET)
    return Check("nccl message", "ok", f"{MESSAGE_BYTES} bytes to itself; {'; '.join(found['traffic'])}")


NCCL_CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (check_nccl,)

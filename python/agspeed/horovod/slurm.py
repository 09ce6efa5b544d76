# SPDX-License-Identifier: Apache-2.0
"""Reads the variables that `srun` sets for the tasks of a step: srun(1), "OUTPUT ENVIRONMENT VARIABLES".

The module calls no Slurm command, because tasks may run on hosts without them. It needs neither torch nor the native
extension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agspeed.errors import UserError

__all__ = ["first_host", "is_step", "step_placement"]

_TASKS = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_FIRST_HOST = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")


def is_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is a task of a step. A batch script has a SLURM_PROCID, but is not a task."""
    return "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ


def step_placement(environ: Mapping[str, str]) -> tuple[int, int, int, int, int, int]:
    """Returns (rank, size, local rank, local size, cross rank, cross size), as `Placement` has them.

    Raises: UserError that names a variable if it is missing or srun cannot have set it so.
    """
    tasks = _tasks_per_node(_value(environ, "SLURM_STEP_TASKS_PER_NODE"))
    node, local_rank = _number(environ, "SLURM_NODEID"), _number(environ, "SLURM_LOCALID")
    rank, size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    if node >= len(tasks) or local_rank >= tasks[node] or rank >= size or size != sum(tasks):
        raise UserError(
            f"SLURM_PROCID={rank} of SLURM_STEP_NUM_TASKS={size}, SLURM_LOCALID={local_rank} on SLURM_NODEID={node} do "
            f"not fit SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']!r}: they are of different steps; "
            "start the script by srun, and set none of them."
        )
    peers = [number for number, count in enumerate(tasks) if count > local_rank]
    return rank, size, local_rank, tasks[node], peers.index(node), len(peers)


def first_host(environ: Mapping[str, str]) -> str:
    """Returns Slurm's name of rank 0's host: gnode08 for "gnode[08-11,20],login".

    Returns "" if the user chose each rank's host, because Slurm lists these hosts sorted. Raises: UserError if the list
    is missing or not srun's.
    """
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        return ""
    nodes = _value(environ, "SLURM_STEP_NODELIST")
    first = _FIRST_HOST.match(nodes)
    if first is None:
        raise UserError(f"SLURM_STEP_NODELIST={nodes!r} is not valid: srun makes it as in gnode[08-11,20].")
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", first[0])


def _tasks_per_node(text: str) -> list[int]:
    """Expands Slurm's short form: "2(x3),1" becomes [2, 2, 2, 1]."""
    tasks: list[int] = []
    for part in text.split(","):
        if (found := _TASKS.fullmatch(part)) is None:
            raise UserError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not valid: srun makes it as in 2(x3),1.")
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


def _value(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise UserError(f"SLURM_PROCID is set and {name} is not: srun sets both; start the script by it.")
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    if not (text := _value(environ, name)).isascii() or not text.isdigit():
        raise UserError(f"{name}={text!r} is not valid: it is a number from 0.")
    return int(text)

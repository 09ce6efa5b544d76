# SPDX-License-Identifier: Apache-2.0
"""What `srun` tells the tasks of a step: srun(1), "OUTPUT ENVIRONMENT VARIABLES".

Nothing here calls Slurm: tasks may run where its commands are not installed. Needs neither torch nor the extension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agspeed.errors import UserError

__all__ = ["first_host", "is_step", "step_placement"]

_TASKS = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_FIRST_HOST = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")


def is_step(environ: Mapping[str, str]) -> bool:
    """False in a batch script, too: it has a SLURM_PROCID, but is none of the tasks."""
    return "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ


def step_placement(environ: Mapping[str, str]) -> tuple[int, int, int, int, int, int]:
    """Returns: rank, size; local rank, tasks of this node; which of the nodes that have this local rank this is, of how
    many. Raises: UserError that names the variable, where one is missing or is not what srun makes.
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
    """Where rank 0 runs, by the name that Slurm has for it: gnode08 of "gnode[08-11,20],login". Nothing where the user
    chose each rank's host, which Slurm lists sorted. Raises: UserError.
    """
    if environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        return ""
    nodes = _value(environ, "SLURM_STEP_NODELIST")
    first = _FIRST_HOST.match(nodes)
    if first is None:
        raise UserError(f"SLURM_STEP_NODELIST={nodes!r} is not valid: srun makes it as in gnode[08-11,20].")
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", first[0])


def _tasks_per_node(text: str) -> list[int]:
    """Of "2(x3),1": [2, 2, 2, 1]."""
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

# SPDX-License-Identifier: Apache-2.0
"""Collects the jobs of this host whose ranks may be looked into. Any thread; nothing is kept."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable

from agspeed.errors import AgspeedError, UserError
from agspeed.inspection import points, processes
from agspeed.inspection.causes import Job
from agspeed.launch import keeper

__all__ = ["jobs_of"]


def jobs_of(process: int | None = None, job: str | None = None) -> list[Job]:
    """Asks the ranks on this host.

    Args:
        process: only jobs with this process, or with a rank that it has started.
        job: only the job of this name.
    Raises: UserError if there is no such process or job, or if it belongs to another user; AgspeedError if this user
        has no rank on this host.
    """
    user = os.geteuid() if process is None else _user_of(process)
    answers = points.ask(points.find(), lambda point: point.user == user or (user == 0 and process is None))
    found = _jobs(answers)
    if process is not None:
        family = _family(process)
        found = [each for each in found if any(answer.point.process in family for answer in each.answers.values())]
        if not found:
            raise UserError(
                f"process {process} has no process group of agspeed, and neither have the processes that it started: "
                "name a rank or its launcher; `agspeed comm inspect` without a number shows all ranks"
            )
    if job is not None:
        known = ", ".join(each.name for each in found if each.name) or "none"
        found = [each for each in found if each.name == job]
        if not found:
            raise UserError(f"--job {job}: this host has no such job; it has {known}")
    if not found:
        raise AgspeedError(
            "no process of yours on this host has a process group of agspeed; in a container, run the command there"
        )
    return found


def _user_of(process: int) -> int:
    """Returns the user of a process. Raises: UserError if this user may not look into it."""
    found = processes.look_at(process)
    if found is None or found.has_ended:
        raise UserError(f"there is no process {process} on this host")
    if os.geteuid() not in (0, found.user):
        raise UserError(f"process {process} belongs to {_name(found.user)}: only that user and root can look into it")
    return found.user


def _name(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"


def _family(process: int) -> set[int]:
    """Returns a process and all processes that it has started, directly or indirectly."""
    family = {process}
    found = keeper.processes()
    while more := {pid for pid, each in found.items() if each.parent in family} - family:
        family |= more
    return family


def _jobs(answers: Iterable[points.Answer]) -> list[Job]:
    by_job: dict[tuple[int, str, int, int], dict[int, points.Answer]] = {}
    for answer in sorted(answers, key=lambda each: each.point.process):
        point = answer.point
        # Jobs whose ranks have not met have no name. Two such jobs differ if both have a rank of this number.
        number = 0
        while point.rank in by_job.get((point.user, point.job, point.world_size, number), {}):
            number += 1
        by_job.setdefault((point.user, point.job, point.world_size, number), {})[point.rank] = answer
    jobs = []
    for (_, name, size, _), ranks in sorted(by_job.items()):
        looked = {number: processes.look_at(answer.point.process) for number, answer in ranks.items()}
        jobs.append(Job(name, size, ranks, {number: each for number, each in looked.items() if each is not None}))
    return jobs

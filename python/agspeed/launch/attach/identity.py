# SPDX-License-Identifier: Apache-2.0
"""The name of an elastic job, by which another launcher finds it, and the flags for it. Pure."""

from __future__ import annotations

import argparse
import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agspeed.errors import UserError
from agspeed.version import __version__

__all__ = ["GRACE_S", "Identity", "add_to", "identity_of"]

GRACE_S = 60.0
"""A supervisor that starts launchers again needs less. Longer, hosts would be kept for a job that is given up."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Identity:
    """A job and a launcher of it.

    Attributes:
        job: its name.
        is_attaching: whether the launcher takes a job over.
        is_generated: whether the user does not know the name yet.
        grace_s: how long members go on without a launcher; 0 if they end with it.
        launcher: random.
    """

    job: str
    is_attaching: bool
    is_generated: bool
    grace_s: float
    launcher: str

    def words(self, host: str) -> Mapping[str, Any]:
        """Returns the part of the agent's "job" that says this. host: as the launcher names it."""
        is_reachable = self.grace_s > 0 or self.is_attaching
        return {
            "id": self.job if is_reachable else None,
            "host": host,
            "grace_s": self.grace_s,
            "version": __version__,
            "launcher": {"id": self.launcher, "name": f"process {os.getpid()} on {socket.gethostname()}"},
        }

    def hint(self) -> str:
        """Says how another launcher attaches, for the user; empty if that is known or impossible."""
        if not self.is_generated or not self.grace_s:
            return ""
        return f"if this launcher is killed, the same command with --attach {self.job} goes on with the job"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        "--job-id", metavar="NAME", help="elastic: the name by which --attach finds the job; default: a random one"
    )
    parser.add_argument(
        "--attach",
        metavar="NAME",
        help="elastic: go on with a job whose launcher was killed; give its other flags, too",
    )
    parser.add_argument(
        "--launcher-grace",
        type=float,
        metavar="S",
        help=f"elastic: how many seconds ranks go on if this launcher is killed, until one attaches ({GRACE_S:g}); 0: "
        "they end with it",
    )


def identity_of(arguments: argparse.Namespace, is_elastic: bool) -> Identity | None:
    """Returns the name of an elastic job; None for a job of a fixed size. Raises: UserError for wrong flags."""
    job, attach, grace_s = arguments.job_id, arguments.attach, arguments.launcher_grace
    given = {"--job-id": job, "--attach": attach, "--launcher-grace": grace_s}
    names = [flag for flag, value in given.items() if value is not None]
    if names and not is_elastic:
        raise UserError(f"{names[0]} is for elastic jobs; give --min-np or --max-np, too, or leave it out.")
    if job is not None and attach is not None:
        raise UserError("--attach names a job that runs, and --job-id a new one; use one of them.")
    for flag, name in (("--job-id", job), ("--attach", attach)):
        if name is not None and not _NAME.fullmatch(name):
            raise UserError(f"{flag} {name[:80]!r}: write 1 to 64 letters, digits, dots, dashes or underscores.")
    if grace_s is not None and not 0 <= grace_s < math.inf:
        raise UserError(f"--launcher-grace {grace_s}: write a number of seconds, 0 or more.")
    if not is_elastic:
        return None
    return Identity(
        job=attach or job or os.urandom(4).hex(),
        is_attaching=attach is not None,
        is_generated=attach is None and job is None,
        grace_s=GRACE_S if grace_s is None else grace_s,
        launcher=os.urandom(8).hex(),
    )

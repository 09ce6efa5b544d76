# SPDX-License-Identifier: Apache-2.0
"""A new agent of an elastic job, on a host where an earlier agent of the job may have been left by a lost launcher.

It passes frames on between the new launcher and the earlier agent, or lets that one end. Threading: the agent's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agspeed.launch import frames
from agspeed.launch.attach import point
from agspeed.launch.launcher_link import LauncherLink

__all__ = ["settle"]


def settle(job: Mapping[str, Any], launcher: LauncherLink) -> bool:
    """Finds the earlier agent, and does with it what the job's mode says (`callers.py`).

    Returns: whether this process has nothing left to do; if not, it is the agent of this host.
    Raises: ClosedError if the launcher or its connection is lost.
    """
    for connection in point.connections(job["id"], job["host"]):
        with connection:
            earlier = point.link(connection, frames.MOST_AGENT_BYTES)
        try:
            earlier.send("job", job)
            if job["mode"] == "attach":
                _pass_on(launcher, earlier)
                return True
            if _is_refused(launcher, earlier):
                return True
        finally:
            earlier.close()
    if job["mode"] == "attach":
        launcher.send("absent", 0)
    return bool(job["mode"] == "attach")


def _pass_on(launcher: LauncherLink, earlier: frames.Link) -> None:
    """Passes frames on until the earlier agent ends."""
    while True:
        launcher.poll((), others=earlier.events())
        received, launcher.received = launcher.received, []
        for frame in received:
            earlier.send(*frame)
        earlier.send_rest()
        try:
            for frame in earlier.receive():
                launcher.send(*frame)
        except (frames.FrameError, frames.ClosedError):
            return


def _is_refused(launcher: LauncherLink, earlier: frames.Link) -> bool:
    """Waits until the earlier agent has ended its members, or lets them run beside others. Returns: False then."""
    while True:
        launcher.poll((), others=earlier.events())
        try:
            answers = earlier.receive()
        except (frames.FrameError, frames.ClosedError):
            return False
        if answers and answers[0].kind == "refused":
            launcher.send(*answers[0])
        if answers:
            return answers[0].kind == "refused"

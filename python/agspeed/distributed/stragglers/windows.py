# SPDX-License-Identifier: Apache-2.0
"""Window: a rank's measurements over some consecutive steps, as the ranks exchange them.

It is plain data: no torch, no sockets, any thread.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agspeed.distributed.messages import count, plain, text

MOST_LETTERS = 64
"""The longest name of a host or an interface."""
MOST_RAILS = 64
_MOST_STEPS = 1 << 62
_MOST_SECONDS, _MOST_RATE = 1e7, 1e15


@dataclass(frozen=True)
class RailRate:
    """The rate at which a rank's rail sends, in bytes per second; 0: not known."""

    name: str
    rate: float


@dataclass(frozen=True)
class Window:
    """Measurements of one rank. Times are seconds per step."""

    number: int
    """Grows with each window of the rank."""
    host: str
    step: int
    """How many steps the rank had made at the end of the window."""
    step_s: float
    """From the end of one optimizer step to the end of the next one."""
    input_s: float
    """The part of it before the forward."""
    wait_s: float
    """The part of it in which all gradients were ready, and the rank waited for the reductions."""
    compute_s: float
    """All the rest."""
    starved: float
    """Share of the processor time which this process asked for and did not get, from 0 to 1."""
    is_tuning: bool = False
    """Whether candidates were being tried, which changes the times."""
    rails: tuple[RailRate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the window as a JSON value."""
        rails = [[plain(rail.name, MOST_LETTERS), rail.rate] for rail in self.rails[:MOST_RAILS]]
        return {**dataclasses.asdict(self), "host": plain(self.host, MOST_LETTERS), "rails": rails}

    @staticmethod
    def parse(found: Any) -> Window:
        """Reverses `to_json`. Raises: ValueError, TypeError or KeyError for anything that no rank writes."""
        rails = found["rails"]
        if not isinstance(rails, list) or len(rails) > MOST_RAILS:
            raise ValueError(f"no list of at most {MOST_RAILS} rails")
        return Window(
            number=count(found["number"], _MOST_STEPS),
            host=text(found["host"], MOST_LETTERS),
            step=count(found["step"], _MOST_STEPS),
            step_s=number(found["step_s"], _MOST_SECONDS),
            input_s=number(found["input_s"], _MOST_SECONDS),
            wait_s=number(found["wait_s"], _MOST_SECONDS),
            compute_s=number(found["compute_s"], _MOST_SECONDS),
            starved=number(found["starved"], 1.0),
            is_tuning=flag(found["is_tuning"]),
            rails=tuple(RailRate(text(name, MOST_LETTERS), number(rate, _MOST_RATE)) for name, rate in rails),
        )


def number(found: Any, most: float) -> float:
    """Accepts a number from 0 to `most`."""
    if type(found) not in (int, float) or not 0 <= found <= most:
        raise ValueError(f"no number from 0 to {most:g}")
    return float(found)


def flag(found: Any) -> bool:
    """Accepts true and false."""
    if type(found) is not bool:
        raise ValueError("neither true nor false")
    return found


def usual_mean(values: Iterable[float]) -> float:
    """Returns the mean without the longest twentieth: rare long pauses are evaluations or checkpoints.

    Returns 0 if there are no values.
    """
    ordered = sorted(values)
    usual = ordered[: len(ordered) - math.ceil(len(ordered) / 20)] if len(ordered) > 2 else ordered
    return math.fsum(usual) / len(usual) if usual else 0.0

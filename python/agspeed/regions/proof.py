# SPDX-License-Identifier: Apache-2.0
"""Carries the compile child's gate verdict to the training process, which loads the same code from the caches.

The gate is a function of code, graph and inputs. If the training process loads code with the same digest for the same
region, the child's verdict holds there too, and training need not wait for a second check.
"""

from __future__ import annotations

from dataclasses import dataclass

from agspeed.regions.layouts import LaidOut, Layouts
from agspeed.regions.outcome import Outcome
from agspeed.regions.sizes import SizedRunner
from agspeed.reporting.parts import Json


@dataclass(frozen=True)
class Proof:
    """The fact that code with this digest passed the gate on a region's sample."""

    code_digest: str
    gate: Json
    layouts: Layouts
    """Layouts to which its outputs must be copied (see `LaidOut`)."""

    @staticmethod
    def of(outcome: Outcome) -> Proof | None:
        """Returns the proof for an outcome. None if another process cannot rely on it: if the code has no digest, or
        has symbolic sizes, in which case it may run only at sizes that this process has checked."""
        digest = getattr(outcome.runner, "code_digest", None)
        if not outcome.usable or digest is None or isinstance(outcome.runner, SizedRunner):
            return None
        layouts = outcome.runner.layouts if isinstance(outcome.runner, LaidOut) else {}
        return Proof(digest, outcome.gate, layouts)

    def covers(self, outcome: Outcome) -> bool:
        """Returns whether `outcome`, which is compiled and not yet checked, runs the proven code."""
        return getattr(outcome.runner, "code_digest", None) == self.code_digest

    def apply(self, outcome: Outcome) -> None:
        """Gives `outcome` the verdict. Requires: covers(outcome)."""
        outcome.gate = self.gate
        if self.layouts and outcome.runner is not None:
            outcome.runner = LaidOut(outcome.runner, self.layouts)

    def to_json(self) -> Json:
        return {"code_digest": self.code_digest, "gate": self.gate, "layouts": list(self.layouts.items())}

    @staticmethod
    def from_json(data: Json) -> Proof:
        layouts = {int(output): [int(dim) for dim in layout] for output, layout in data["layouts"]}
        return Proof(str(data["code_digest"]), dict(data["gate"]), layouts)

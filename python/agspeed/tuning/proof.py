# SPDX-License-Identifier: Apache-2.0
"""What the compile child found out about code that the training process loads from the caches afterwards.

The gate is a function of code, graph and inputs. Where the training process loads code of the same digest for the same
region, the child's verdict is its own, and training need not stand still for it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agspeed.tuning.gate.layouts import LaidOut, Layouts
from agspeed.tuning.gate.sizes import SizedRunner
from agspeed.tuning.outcome import Outcome


@dataclass(frozen=True)
class Proof:
    """That code of this digest passed the gate on a region's sample."""

    code_digest: str
    gate: dict[str, Any]
    layouts: Layouts
    """What has to be mended of its outputs (see `LaidOut`)."""

    @staticmethod
    def of(outcome: Outcome) -> Proof | None:
        """None where another process cannot rely on it: code without digest, and code for symbolic sizes, which is
        confined to sizes that passed."""
        digest = getattr(outcome.runner, "code_digest", None)
        if not outcome.usable or digest is None or isinstance(outcome.runner, SizedRunner):
            return None
        layouts = outcome.runner.layouts if isinstance(outcome.runner, LaidOut) else {}
        return Proof(digest, outcome.gate, layouts)

    def covers(self, outcome: Outcome) -> bool:
        """Whether `outcome`, compiled and not yet checked, runs the code that was proven."""
        return getattr(outcome.runner, "code_digest", None) == self.code_digest

    def apply(self, outcome: Outcome) -> None:
        """Gives `outcome` the verdict. Requires: covers(outcome)."""
        outcome.gate = self.gate
        if self.layouts and outcome.runner is not None:
            outcome.runner = LaidOut(outcome.runner, self.layouts)

    def to_json(self) -> dict[str, Any]:
        return {"code_digest": self.code_digest, "gate": self.gate, "layouts": list(self.layouts.items())}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Proof:
        layouts = {int(output): [int(dim) for dim in layout] for output, layout in data["layouts"]}
        return Proof(str(data["code_digest"]), dict(data["gate"]), layouts)

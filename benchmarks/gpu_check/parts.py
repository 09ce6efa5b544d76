# SPDX-License-Identifier: Apache-2.0
"""The parts of the check, most important first, each with its share in seconds of the ten minutes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

MINUTES = 10.0

Findings = dict[str, Any]
"""The result of a part: "holds" (True if all its assertions are), "figures", and "left_out" with the reason for checks
that did not run."""


class Part(NamedTuple):
    """`function` names a function of a module of this package. It takes the seconds left and returns `Findings`."""

    name: str
    what: str
    seconds: int
    function: str

    def load(self) -> Callable[[float], Findings]:
        module, _, name = self.function.partition(":")
        found: Callable[[float], Findings] = getattr(importlib.import_module(f"benchmarks.gpu_check.{module}"), name)
        return found


PARTS = (
    Part("environment", "versions, GPU, driver, flags", 20, "machine:environment"),
    Part("kernels", "conformance of own kernels and random clusters", 90, "kernels:conformance"),
    Part("clock", "step times from events against synchronised ones; eager against itself", 45, "timing:clock"),
    Part("meter", "peaks of steps against torch's statistics", 30, "timing:meter"),
    Part("graphs", "results of CUDA graphs live on; random numbers are eager's", 40, "gating:graphs"),
    Part("gate", "sound candidates pass, planted bugs do not", 60, "gating:planted"),
    Part("sanitizer", "compute-sanitizer over a tuned training", 60, "machine:sanitizer"),
    Part("arms", "whole steps of workloads: chosen against eager and fixed arms", 220, "arms:workloads"),
    Part("bandwidth", "own kernels against the bandwidth of a copy", 30, "kernels:bandwidth"),
)

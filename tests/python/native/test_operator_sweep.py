# SPDX-License-Identifier: Apache-2.0
"""Random calls of native operators, judged by the gate.

`make test` runs a few calls of each family, and AG_TEST_THOROUGH=1 runs 200. AG_TEST_SEED chooses the first seed.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from agspeed.backends import CompileOptions, candidate
from agspeed.tuning.gate.check import check
from benchmarks import operators

pytestmark = pytest.mark.usefixtures("needs_native")
_SEED = int(os.environ.get("AG_TEST_SEED", "1"))
_COUNT = 200 if os.environ.get("AG_TEST_THOROUGH") == "1" else 4


def _refusal(call: operators.Call) -> str:
    """Why the gate refuses the call's native program, or an empty text."""
    reasons = []

    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        runner = candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads()))

        def checked(*arguments: Any) -> Any:
            verdict = check(runner, gm, arguments)
            reasons.append("" if verdict.accepted else verdict.reason)
            return gm(*arguments)

        return checked

    torch._dynamo.reset()
    torch.compile(call.compute, backend=backend, dynamic=False, fullgraph=True)(*call.leaves())
    [reason] = reasons
    return reason


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", operators.FAMILIES)
def test_the_gate_accepts_random_calls(family: str) -> None:
    refused = []
    for seed in range(_SEED, _SEED + _COUNT):
        call = operators.draw(family, seed)
        if reason := _refusal(call):
            refused.append(f"AG_TEST_SEED={seed}: {call.description}: {reason}")
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("family", operators.FAMILIES)
def test_a_seed_always_gives_the_same_call(family: str) -> None:
    first, second = (operators.draw(family, _SEED) for _ in range(2))
    assert first.description == second.description
    assert all(torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))
    assert torch.equal(first.compute(*first.tensors), second.compute(*second.tensors))

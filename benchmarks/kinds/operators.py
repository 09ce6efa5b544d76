# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of single operators, native beside eager, on random shapes of each family (`../operators.py`).

The result lists each shape, and the slowest ones first. Rules of the compiler can keep the call where native is slower.
A second eager side is the control. Shapes whose control is outside 0.95 to 1.05 do not count as slower.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import operators
from benchmarks.measure.machine import Watch
from benchmarks.measure.pairing import Limits, compare_all
from benchmarks.measure.statistics import geometric_mean
from benchmarks.workloads.base import Training

_LIMITS = Limits(min_pairs=16, max_pairs=24, half_width=0.02, seconds=6.0, block_seconds=0.002)
_STEADY = (0.95, 1.05)
_MOST_VOID = 0.2


def plan(case: dict[str, Any], threads: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    chosen = case.get("workloads", list(operators.FAMILIES))
    return [{"family": family} for family in chosen]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    watch, first = Watch(spec["cores"]), spec["case"]["seed"]
    rows = [
        _row(operators.draw(spec["family"], first + index), first + index) for index in range(spec["case"]["shapes"])
    ]
    return {"rows": rows, "environment": watch.read()}


def _row(call: operators.Call, seed: int) -> dict[str, Any]:
    eager, control = (_side(call, call.compute, call.leaves()) for _ in range(2))
    sides = {"native": _side(call, *_native(call)), "control": control}
    for side in (eager, *sides.values()):
        for _ in range(3):
            side.step(())
    timed = compare_all(eager, sides, _LIMITS)
    return {
        "family": call.family,
        "seed": seed,
        "call": call.description,
        **{name: comparison.to_dict() for name, comparison in timed.items()},
    }


def _side(call: operators.Call, compute: Callable[..., Any], leaves: list[Tensor]) -> Training:
    def step(_batch: Any) -> Tensor:
        found = compute(*leaves)
        result: Tensor = found[0] if isinstance(found, tuple | list) else found
        torch.autograd.grad(result, leaves, call.gradient)
        return result.detach()

    return Training({}, step, [()])


def _native(call: operators.Call) -> tuple[Callable[..., Any], list[Tensor]]:
    """The compiled call without the guards of Dynamo, which a model checks once for all of its operators."""
    from agspeed.backends import CompileOptions, candidate

    found: list[tuple[Callable[..., Any], list[Tensor]]] = []

    def backend(gm: Any, _inputs: list[Any]) -> Any:
        inputs = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        runner = candidate("native").compile(gm, inputs, CompileOptions(num_threads=torch.get_num_threads()))

        def kept(*arguments: Tensor) -> Any:
            found.append((runner, list(arguments)))
            return runner(*arguments)

        return kept

    torch._dynamo.reset()
    torch.compile(call.compute, backend=backend, dynamic=False, fullgraph=True)(*call.leaves())
    [compiled] = found
    return compiled


def summarize(case: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """A cell is void if the control of too many shapes is unsteady."""
    rows = [row for result in results for row in result["rows"]]
    for row in rows:
        row["is_steady"] = _STEADY[0] <= row["control"]["speedup"]["value"] <= _STEADY[1]
    families = {}
    for row in rows:
        families.setdefault(row["family"], []).append(row["native"]["speedup"]["value"])
    cell = {
        "operators": sorted(rows, key=lambda row: row["native"]["speedup"]["value"]),
        "families": {name: geometric_mean(speeds) for name, speeds in families.items()},
        "environment": results[0]["environment"],
    }
    unsteady = sum(not row["is_steady"] for row in rows)
    if unsteady > _MOST_VOID * len(rows):
        return cell | {"status": "void", "reason": f"the control of {unsteady} of {len(rows)} shapes is unsteady"}
    return cell | {"status": "ok"}

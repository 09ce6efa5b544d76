# SPDX-License-Identifier: Apache-2.0
"""Builders for the nested parts of a report, so that callers write typed Python instead of loose dictionaries.

Each function returns the JSON object of the same name in schema.json, with every field present. The functions check
nothing beyond Python's own argument checking; `model.validate` checks the finished document against the schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "Json",
    "break_",
    "cache_store",
    "candidate",
    "cost_entry",
    "error",
    "errors",
    "fallback",
    "gate",
    "interval",
    "location",
    "optimizer",
    "pause",
    "phase",
    "recompile",
    "region",
    "time_share",
]

Json = dict[str, Any]
"""An object of JSON."""


def location(file: str, line: int, function: str | None = None) -> Json:
    return {"file": file, "line": line, "function": function}


def interval(estimate: float, low: float, high: float, *, pairs: int, confidence: float = 0.95) -> Json:
    return {"estimate": estimate, "low": low, "high": high, "confidence": confidence, "pairs": pairs}


def error(value: float) -> float | str:
    """Returns an error in a form that JSON can hold: NaN and infinity become words."""
    if math.isnan(value):
        return "nan"
    return float(value) if math.isfinite(value) else "inf"


def errors(
    max: float,
    rms: float,
    *,
    eager_max: float,
    eager_rms: float,
    allowed_max: float | None = None,
    allowed_rms: float | None = None,
    worst: str | None = None,
) -> Json:
    return {
        "max": error(max),
        "rms": error(rms),
        "eager_max": error(eager_max),
        "eager_rms": error(eager_rms),
        "allowed_max": None if allowed_max is None else error(allowed_max),
        "allowed_rms": None if allowed_rms is None else error(allowed_rms),
        "worst": worst,
    }


def gate(
    verdict: str,
    *,
    numerics: str = "standard",
    reason: str | None = None,
    forward: Json | None = None,
    gradients: Json | None = None,
    optimizer: Json | None = None,
) -> Json:
    """`verdict` is passed, rejected or not-run; `forward`, `gradients` and `optimizer` come from `errors`."""
    return {
        "verdict": verdict,
        "numerics": numerics,
        "reason": reason,
        "forward": forward,
        "gradients": gradients,
        "optimizer": optimizer,
    }


def candidate(
    name: str,
    *,
    state: str,
    reason: str | None = None,
    compile_s: float | None = None,
    cached: bool = False,
    gate: Json | None = None,
    speedup: Json | None = None,
    step_ms: float | None = None,
    cold: bool = False,
    peak_bytes: int | None = None,
    log: str | None = None,
) -> Json:
    """`state` is chosen, slower, wrong, memory, failed, skipped or pending; `speedup` is eager's time over the
    candidate's."""
    return {
        "name": name,
        "state": state,
        "reason": reason,
        "compile_s": compile_s,
        "cached": cached,
        "gate": gate,
        "speedup": speedup,
        "step_ms": step_ms,
        "cold": cold,
        "peak_bytes": peak_bytes,
        "log": log,
    }


def region(
    id: str,
    *,
    location: Json | None = None,
    operators: int = 0,
    native_operators: int = 0,
    shapes: Mapping[str, int] | None = None,
    chosen: str | None = None,
    candidates: Sequence[Json] = (),
    source: str | None = None,
    graph: str | None = None,
    generated: str | None = None,
) -> Json:
    """`shapes` maps a signature such as "f32[64, 784]" to the number of its occurrences. The last three arguments are
    listings."""
    return {
        "id": id,
        "location": location,
        "operators": operators,
        "native_operators": native_operators,
        "shapes": [{"signature": signature, "count": count} for signature, count in (shapes or {}).items()],
        "chosen": chosen,
        "candidates": list(candidates),
        "source": source,
        "graph": graph,
        "generated": generated,
    }


def phase(kind: str, first_step: int, last_step: int, candidate: str | None = None) -> Json:
    """`kind` is eager, capture, compile, gate, trial or steady. The phase includes both steps."""
    return {"kind": kind, "first_step": first_step, "last_step": last_step, "candidate": candidate}


def pause(kind: str, at_s: float, seconds: float, candidate: str | None = None) -> Json:
    """`kind` is start-up, capture, compile or gate; `at_s` counts from the call of optimize."""
    return {"kind": kind, "candidate": candidate, "at_s": at_s, "seconds": seconds}


def time_share(name: str, kind: str, ms: float) -> Json:
    """`kind` is native, external, eager, input-wait, optimizer, overhead or other."""
    return {"name": name, "kind": kind, "ms": ms}


def break_(reason: str, *, location: Json | None = None, count: int = 1, cost_ms: float | None = None) -> Json:
    """A graph break; `cost_ms` is per step."""
    return {"location": location, "reason": reason, "count": count, "cost_ms": cost_ms}


def recompile(
    reason: str,
    *,
    region: str | None = None,
    location: Json | None = None,
    count: int = 1,
    cost_s: float | None = None,
) -> Json:
    return {"region": region, "location": location, "reason": reason, "count": count, "cost_s": cost_s}


def cost_entry(
    phase: str, *, candidate: str | None = None, count: int = 1, foreground_s: float = 0.0, background_s: float = 0.0
) -> Json:
    """`phase` is capture, compile, gate, trial or other."""
    return {
        "phase": phase,
        "candidate": candidate,
        "count": count,
        "foreground_s": foreground_s,
        "background_s": background_s,
    }


def fallback(reason: str, *, region: str | None = None, location: Json | None = None, count: int = 1) -> Json:
    return {"region": region, "location": location, "reason": reason, "count": count}


def optimizer(name: str, *, chosen: str, why: str, speedup: Json | None = None, gate: Json | None = None) -> Json:
    """`chosen` is eager or fused; `speedup` is the time of the optimizer's own step over the fused step's."""
    return {"name": name, "chosen": chosen, "why": why, "speedup": speedup, "gate": gate}


def cache_store(name: str, *, hits: int = 0, misses: int = 0) -> Json:
    return {"name": name, "hits": hits, "misses": misses}

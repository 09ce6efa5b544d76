# SPDX-License-Identifier: Apache-2.0
"""Makes a session's report from its own state and the tuner's, as one document of the report's schema."""

from __future__ import annotations

import dataclasses
import datetime
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from agspeed import config
from agspeed.distributed import groups, metrics
from agspeed.distributed.layouts import plan_of, predicted_seconds
from agspeed.frontend.target import ShardedTarget
from agspeed.reporting import environment, listing, model, parts
from agspeed.tuning import balance, plan_times
from agspeed.tuning.outcome import Outcome
from agspeed.tuning.plan import EAGER, candidate_of
from agspeed.tuning.tuner_config import MEMORY_SLACK_BYTES

if TYPE_CHECKING:
    from agspeed.distributed.meetings import Meetings
    from agspeed.frontend.history import History
    from agspeed.frontend.optimizer import OptimizerSession
    from agspeed.frontend.region import Region
    from agspeed.frontend.session import Session

Json = dict[str, Any]


def make_report(session: Session) -> model.Report:
    """Returns the session's present state as a validated report."""
    session.note_unseen_steps()
    tuner = session.tuner_snapshot()
    data = model.empty_report(session.target.name)
    _fill_header(data["header"], session)
    data["status"] = {"state": session.state, "reason": session.current_reason}
    _fill_decision(data, tuner, session)
    data["plans"] = [_plan(arm, tuner, session) for arm in tuner.get("arms", [])]
    data["regions"] = [_region(region, session.plan) for region in session.regions]
    data["timeline"] = session.history.timeline.to_json()
    data["graph_breaks"] = [
        parts.break_(reason, location=_location(where), count=count)
        for (where, reason), count in session.history.breaks.items()
    ]
    data["recompiles"] = [
        parts.recompile(reason, location=_location(where), count=count)
        for (where, reason), count in session.history.recompiles.items()
    ]
    data["fallbacks"] = _fallbacks(session)
    _fill_cost(data["cost"], tuner, session)
    _fill_memory(data["memory"], tuner, session)
    data["time_shares"] = time_shares(session.history)
    data["cache"].update(directory=str(session.settings.cache_dir), usable=tuner.get("has_database", False))
    data["cache"]["stores"] = _cache_stores(tuner, session)
    data["warnings"] = [note for note in (session.history.lost, tuner.get("note")) if note]
    data["optimizer"] = _optimizer(session.optimizer) if session.optimizer is not None else None
    data["group"] = _group(session) if session.wrapper is not None else None
    data["units"] = _units(session, session.target) if isinstance(session.target, ShardedTarget) else None
    data["comparison"] = session.runner.comparison_state()
    data["communication"] = metrics.counters() if groups.find() is not None else None
    data["reproduce"] = {
        "command": environment.command(),
        "environment": config.shown_variables(),
        "plan": _plan_file(session),
    }
    return model.Report(data)


def _group(session: Session) -> Json:
    assert session.wrapper is not None
    stages = {}
    for region in session.regions if session.wrapper.bucket_bytes else ():
        outcome = region.outcomes.get(region.selected)
        runner = outcome.runner if outcome is not None else None
        stages[f"region {region.index}"] = getattr(runner, "num_stages", None)
    wrapper = session.wrapper
    described = {"wrapper": wrapper.kind, "backend": wrapper.backend, "ranks": wrapper.num_ranks}
    return {**described, "hosts": wrapper.num_hosts, "stages": stages, "together": _together(session.meetings)}


def _units(session: Session, target: ShardedTarget) -> list[Json]:
    """Returns the candidates that run each unit of a sharded module."""
    units = []
    for name, why in target.units.items():
        regions = [region for region in session.regions if region.part == name]
        runs = sorted({region.selected for region in regions}) if session.plan != EAGER and why is None else []
        why = why if regions else why or "nothing of it was captured"
        units.append({"name": name or target.name, "runs": ", ".join(runs) or EAGER, "why": why})
    return units


def _together(meetings: Meetings | None) -> Json | None:
    if meetings is None or meetings.tuner is None:
        return None
    layouts, cost = meetings.layouts, meetings.cost
    current = layouts.current if layouts is not None else None
    return {
        "buckets": dataclasses.asdict(current) if current is not None else None,
        "own_buckets": dataclasses.asdict(layouts.own) if layouts is not None else None,
        "reduction_s": cost.seconds if cost is not None else None,
        "reduction_s_per_byte": cost.seconds_per_byte if cost is not None else None,
        "step": _step(meetings),
    }


def _step(meetings: Meetings) -> Json | None:
    """Returns the times at which the buckets of one step were full, sent and reduced."""
    step, cost = meetings.latest_step(), meetings.cost
    if step is None:
        return None
    full = [(bucket.ready_s, bucket.bytes) for bucket in step.buckets]
    predicted = max(predicted_seconds(full, cost) - step.gradients_s, 0.0) if cost is not None else None
    return {**dataclasses.asdict(step), "exposed_s": step.exposed_s, "predicted_exposed_s": predicted}


def make_idle_report(name: str, reason: str) -> model.Report:
    """Returns a report for a target that was passed to `optimize` and left as it is."""
    data = model.empty_report(name)
    described = environment.describe()
    data["header"].update({key: value for key, value in described.items() if key in data["header"]})
    data["status"] = {"state": "eager", "reason": reason}
    data["decision"].update(chosen="eager", why=reason)
    data["reproduce"] = {"command": environment.command(), "environment": config.shown_variables(), "plan": None}
    return model.Report(data)


def _fill_header(header: Json, session: Session) -> None:
    parameters = list(session.target.parameters())
    described = environment.describe()
    header.update({key: value for key, value in described.items() if key in header})
    header.update(
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        seed=torch.initial_seed() % (1 << 53),
        wall_s=time.time() - session.history.started,
        settings=session.settings.to_dict(),
    )
    header["threads"] = {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()}


def _fill_decision(data: Json, tuner: Json, session: Session) -> None:
    decision = tuner.get("decision")
    data["decision"]["chosen"] = _arm(session, tuner)
    data["decision"]["why"] = session.current_reason
    data["decision"]["resumed_pairs"] = tuner.get("resumed_pairs", 0)
    if not decision:
        return
    source = "cache" if decision["from_database"] else _taken(session)
    guard = tuner["guard"]
    drift = (
        f"checked {guard['blocks']} times since, rolled back {guard['rollbacks']} times" if guard["blocks"] else None
    )
    data["decision"].update(source=source, speedup=_speedup(decision["ratio"] or guard["ratio"]), drift=drift)


def _arm(session: Session, tuner: Json) -> str:
    """Returns the arm that runs, or the best so far while tuning: the plan and, if it has one, its bucket layout."""
    if session.state == "tuning":
        return str(tuner.get("incumbent", "eager"))
    decided = str((tuner.get("decision") or {}).get("arm", ""))
    return decided if plan_of(decided) == session.plan else session.plan


def _taken(session: Session) -> str:
    """Returns the source of a decision that this process made."""
    if session.settings.mode != "deterministic":
        return "measured"
    return "fixed-order" if session.settings.plan is None else "plan-file"


def _optimizer(tuned: OptimizerSession) -> Json:
    tuner = tuned.snapshot() or {}
    decision = tuner.get("decision")
    speedup = _speedup(decision["ratio"] or tuner["guard"]["ratio"]) if decision else None
    return parts.optimizer(tuned.name, chosen=tuned.chosen, why=tuned.reason, speedup=speedup, gate=tuned.gate_result)


def _plan(arm: Json, tuner: Json, session: Session) -> Json:
    found = [region.outcomes.get(candidate_of(arm["name"], region.index)) for region in session.regions]
    outcomes = [outcome for outcome in found if outcome is not None]
    ratio, seconds = plan_times.ratio(arm, tuner), plan_times.step_seconds(arm, tuner)
    return parts.candidate(
        arm["name"],
        state=_plan_state(arm, tuner, session),
        reason=arm["reason"] or None,
        compile_s=sum(o.compile_seconds for o in outcomes) if outcomes else None,
        gate=_worst_gate(outcomes),
        speedup=_speedup(ratio),
        step_ms=1e3 * seconds if seconds is not None else None,
        cold=plan_times.is_cold(arm, tuner),
        peak_bytes=arm["peak_bytes"] or None,
    )


def _plan_state(arm: Json, tuner: Json, session: Session) -> str:
    decision = tuner.get("decision")
    if decision and decision["arm"] == arm["name"]:
        return "chosen"
    if arm["state"] == "rejected":
        outcomes = [region.outcomes.get(candidate_of(arm["name"], region.index)) for region in session.regions]
        states = [_refused_state(outcome) for outcome in outcomes if outcome is not None and not outcome.usable]
        return "skipped" if states and "wrong" not in states else "wrong"
    if arm["state"] in ("failed", "skipped"):
        return str(arm["state"])
    if arm["verdict"] == "lost" and "memory" in arm["reason"]:
        return "memory"
    if arm["name"] == "eager" or arm["verdict"] == "lost" or (decision and arm["ratio"]):
        return "slower"
    return "skipped" if decision else "pending"


def _region(region: Region, plan: str) -> Json:
    outcome = region.outcomes.get(region.selected)
    runner = outcome.runner if outcome is not None else None
    place = _location(region.where)
    return parts.region(
        f"region {region.index}",
        location=place,
        operators=int(getattr(runner, "num_operators", region.num_operators)),
        native_operators=int(getattr(runner, "native_operators", 0)),
        shapes=Counter([_signature(region)]),
        chosen=region.selected if plan != "eager" else "eager",
        candidates=[_candidate(o, region.selected) for o in region.outcomes.values()],
        source=listing.excerpt(place["file"], place["line"]) if place is not None else None,
        graph=listing.shortened(region.gm.print_readable(print_output=False)),
        generated=listing.shortened(getattr(runner, "generated", "")),
    )


def _candidate(outcome: Outcome, selected: str) -> Json:
    state = "pending" if outcome.state == "ready" else _refused_state(outcome)
    return parts.candidate(
        outcome.candidate,
        state="chosen" if outcome.candidate == selected and outcome.usable else state,
        reason=outcome.reason or None,
        compile_s=outcome.compile_seconds,
        gate=outcome.gate or None,
    )


def _refused_state(outcome: Outcome) -> str:
    """Returns the report's state of an unusable outcome: "wrong" if the gate found a difference, "skipped" if the gate
    could not compare, else its own state."""
    if outcome.state != "rejected":
        return outcome.state
    return "wrong" if outcome.gate.get("verdict") == "rejected" else "skipped"


def _worst_gate(outcomes: list[Outcome]) -> Json | None:
    """Returns the gate result to show for a whole plan: the first failed one, else the one with the largest error."""
    gates = [outcome.gate for outcome in outcomes if outcome.gate]
    failed = [gate for gate in gates if gate["verdict"] != "passed"]
    if failed:
        return failed[0]
    return max(gates, key=lambda gate: _size((gate["gradients"] or gate["forward"] or {}).get("max")), default=None)


def _size(error: Any) -> float:
    return float(error) if isinstance(error, (int, float)) else math.inf if error else 0.0


def _speedup(ratio: Mapping[str, Any] | None) -> Json | None:
    """Inverts the tuner's ratio, which is step time over eager's: the report shows eager's time over the plan's."""
    if not ratio or not ratio["estimate"]:
        return None
    high = 1 / ratio["low"] if ratio["low"] else None
    low = 1 / ratio["high"] if ratio["high"] else None
    if high is None or low is None:
        return None
    return parts.interval(1 / ratio["estimate"], low, high, pairs=ratio["pairs"], confidence=ratio["confidence"])


def _fallbacks(session: Session) -> list[Json]:
    found = [
        parts.fallback(reason, location=_location(where), count=count)
        for (where, reason), count in session.history.fallbacks.items()
    ]
    if session.state != "tuned":
        return found
    for region in session.regions:
        outcome = region.outcomes.get(session.candidate_for(region))
        if outcome is not None and not outcome.usable:
            reason = f"{outcome.candidate}: {outcome.reason}"
            found.append(parts.fallback(reason, region=f"region {region.index}", location=_location(region.where)))
    return found


def _fill_cost(cost: Json, tuner: Json, session: Session) -> None:
    ledger = tuner.get("ledger")
    if not ledger:
        return
    history = session.history
    for phase, seconds in (("other", history.start_up_seconds), ("capture", history.capture_seconds)):
        if seconds:
            cost["entries"].append(parts.cost_entry(phase, foreground_s=seconds))
    for region in session.regions:
        for outcome in region.outcomes.values():
            name = outcome.candidate
            cost["entries"].append(parts.cost_entry("compile", candidate=name, foreground_s=outcome.compile_seconds))
            if outcome.gate_seconds:
                cost["entries"].append(parts.cost_entry("gate", candidate=name, foreground_s=outcome.gate_seconds))
    for arm in tuner["arms"]:
        if arm["background_seconds"]:
            entry = parts.cost_entry("compile", candidate=arm["name"], background_s=arm["background_seconds"])
            cost["entries"].append(entry)
    cost["entries"].append(parts.cost_entry("trial", foreground_s=max(0.0, ledger["trial_seconds"])))
    num_operators = sum(region.num_operators for region in session.regions)
    cost.update(balance.of(tuner, _arm(session, tuner), session.settings.mode, num_operators))
    cost["next_run"] = _next_run(tuner, session)


def _next_run(tuner: Json, session: Session) -> str:
    """Returns `cost.next_run` of the report; see schema.json."""
    if not tuner.get("has_database") or session.settings.mode == "deterministic":
        return "same"
    is_open = tuner["decision"] is None or session.state == "tuning" or tuner.get("is_passing", False)
    return "resumes" if is_open else "decided"


def _cache_stores(tuner: Json, session: Session) -> list[Json]:
    """Returns the hits and misses of each cache."""
    if not tuner.get("has_database"):
        return []
    decision = tuner.get("decision")
    is_found = bool(decision and decision["from_database"])
    outcomes = [outcome for region in session.regions for outcome in region.outcomes.values()]
    made = sum(getattr(outcome.runner, "num_kernels", 0) for outcome in outcomes)
    found = sum(getattr(outcome.runner, "num_cached_kernels", 0) for outcome in outcomes)
    stores = [parts.cache_store("decisions", hits=int(is_found), misses=int(not is_found))]
    return [*stores, parts.cache_store("kernels", hits=found, misses=made - found)] if made else stores


def _fill_memory(memory: Json, tuner: Json, session: Session) -> None:
    peaks = {arm["name"]: arm["peak_bytes"] or None for arm in tuner.get("arms", [])}
    memory.update(eager_peak_bytes=peaks.get("eager"), chosen_peak_bytes=peaks.get(_arm(session, tuner)))
    eager_peak: int = peaks.get("eager") or 0
    if eager_peak:
        memory["limit_bytes"] = int(eager_peak * (1 + session.settings.memory_slack)) + MEMORY_SLACK_BYTES


def time_shares(history: History) -> list[Json]:
    """Returns the parts of an average recent step of the latest plan. Omits parts that were not measured."""
    count = len(history.recent)
    if not count:
        return []

    def milliseconds(part: str) -> float:
        return 1e3 * float(sum(getattr(times, part) for times in history.recent)) / count

    forward, optimizer = milliseconds("forward"), milliseconds("optimizer")
    rest = max(0.0, milliseconds("busy") - forward - optimizer)
    shares = [
        parts.time_share(f"forward ({history.recent_plan})", "other", forward),
        parts.time_share("loss and backward" if forward else "forward and backward", "other", rest),
        parts.time_share("optimizer", "optimizer", optimizer),
        parts.time_share("waiting for input", "input-wait", 1e3 * _usual_wait([t.input_wait for t in history.recent])),
    ]
    return [share for share in shares if share["ms"] > 0]


def _usual_wait(waits: list[float]) -> float:
    """Returns the mean of the measured waits without the longest twentieth: rare long pauses are evaluations."""
    seen = sorted(wait for wait in waits if wait > 0)
    usual = seen[: len(seen) - math.ceil(len(seen) / 20)] if len(seen) > 2 else seen
    return statistics.fmean(usual) if usual else 0.0


def _location(where: str) -> Json | None:
    path, _, line = where.rpartition(":")
    return parts.location(path, int(line)) if path and line.isdigit() else None


def _signature(region: Region) -> str:
    tensors = [value for value in region.example_inputs if isinstance(value, torch.Tensor)]
    data = [value for value in tensors if not isinstance(value, torch.nn.Parameter)]
    shown = [f"{str(value.dtype).removeprefix('torch.')}{[str(n) for n in value.shape]}" for value in data[:4]]
    return ", ".join(shown).replace("'", "") or "no tensor inputs"


def _plan_file(session: Session) -> str | None:
    """Returns the file that ``plan=`` can replay: this report's .json file, if it has one and tuning has ended."""
    path = session.settings.report
    return str(path) if path is not None and session.state != "tuning" and str(path).endswith(".json") else None

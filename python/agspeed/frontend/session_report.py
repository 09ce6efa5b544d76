# SPDX-License-Identifier: Apache-2.0
"""Makes a session's report from its own state and the tuner's, as one document of the report's schema."""

from __future__ import annotations

import dataclasses
import datetime
import math
import statistics
import time
from typing import TYPE_CHECKING

import torch

from agspeed import config
from agspeed.distributed import groups, metrics
from agspeed.distributed.codecs.in_use import codec_of
from agspeed.distributed.layouts import plan_of, predicted_seconds
from agspeed.distributed.stragglers import verdict_of
from agspeed.distributed.stragglers.sentences import sentence
from agspeed.frontend import report_candidates
from agspeed.frontend.target import ShardedTarget
from agspeed.regions.plan import EAGER
from agspeed.reporting import environment, model, parts
from agspeed.reporting.parts import Json
from agspeed.tuning import balance
from agspeed.tuning.tuner_config import MEMORY_SLACK_BYTES

if TYPE_CHECKING:
    from agspeed.distributed.rank_sync import RankSync
    from agspeed.frontend.history import History
    from agspeed.frontend.optimizers.session import OptimizerSession
    from agspeed.frontend.session import Session
    from agspeed.tuning.snapshot import TuningSnapshot


def make_report(session: Session) -> model.Report:
    """Returns the session's present state as a validated report."""
    session.note_unseen_steps()
    tuner = session.tuner_snapshot()
    data = model.empty_report(session.target.name)
    _fill_header(data["header"], session)
    data["status"] = {"state": session.state, "reason": session.current_reason}
    _fill_decision(data, tuner, session)
    _fill_memory(data["memory"], tuner, session)
    if tuner is not None:
        data["plans"] = [report_candidates.plan(arm, tuner, session.regions) for arm in tuner["arms"]]
    data["regions"] = [report_candidates.region(region, session.plan) for region in session.regions]
    data["timeline"] = session.history.timeline.to_json()
    data["graph_breaks"] = [
        parts.break_(reason, location=report_candidates.location(where), count=count)
        for (where, reason), count in session.history.breaks.items()
    ]
    data["recompiles"] = [
        parts.recompile(reason, location=report_candidates.location(where), count=count)
        for (where, reason), count in session.history.recompiles.items()
    ]
    data["fallbacks"] = _fallbacks(session)
    _fill_cost(data["cost"], tuner, session)
    data["time_shares"] = time_shares(session.history)
    data["cache"].update(directory=str(session.settings.cache_dir), usable=tuner is not None and tuner["has_database"])
    data["cache"]["stores"] = _cache_stores(tuner, session)
    data["warnings"] = [note for note in (session.history.lost, tuner["note"] if tuner is not None else None) if note]
    data["optimizers"] = [_optimizer(tuned) for tuned in session.optimizers]
    data["group"] = _group(session) if session.wrapper is not None else None
    data["stragglers"] = _stragglers(session)
    data["codec"] = _codec(session)
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
    return {**described, "hosts": wrapper.num_hosts, "stages": stages, "together": _together(session.rank_sync)}


def _codec(session: Session) -> Json | None:
    """Returns the codec that sends the gradients, and the choices that it has made by measurement."""
    codec = codec_of(getattr(session.target, "module", None))
    return {"name": codec.name, "text": codec.sentence(), "buckets": codec.report()} if codec is not None else None


def _stragglers(session: Session) -> Json | None:
    """Returns which ranks hold or have held the others up."""
    verdict = verdict_of(getattr(session.target, "module", None))
    if verdict is None:
        return None
    lasting, ended = (
        [{**dataclasses.asdict(finding), "text": sentence(finding)} for finding in found]
        for found in (verdict.lasting, verdict.ended)
    )
    return {"rounds": verdict.rounds, "lasting": lasting, "ended": ended}


def _units(session: Session, target: ShardedTarget) -> list[Json]:
    """Returns the candidates that run each unit of a sharded module."""
    units = []
    for name, why in target.units.items():
        regions = [region for region in session.regions if region.part == name]
        runs = sorted({region.selected for region in regions}) if session.plan != EAGER and why is None else []
        why = why if regions else why or "nothing of it was captured"
        units.append({"name": name or target.name, "runs": ", ".join(runs) or EAGER, "why": why})
    return units


def _together(rank_sync: RankSync | None) -> Json | None:
    if rank_sync is None or rank_sync.tuner is None:
        return None
    layouts, cost = rank_sync.layouts, rank_sync.cost
    current = layouts.current if layouts is not None else None
    return {
        "buckets": dataclasses.asdict(current) if current is not None else None,
        "own_buckets": dataclasses.asdict(layouts.own) if layouts is not None else None,
        "reduction_s": cost.seconds if cost is not None else None,
        "reduction_s_per_byte": cost.seconds_per_byte if cost is not None else None,
        "step": _step(rank_sync),
    }


def _step(rank_sync: RankSync) -> Json | None:
    """Returns the times at which the buckets of one step were full, sent and reduced."""
    step, cost = rank_sync.group.latest_step(), rank_sync.cost
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


def _fill_decision(data: Json, tuner: TuningSnapshot | None, session: Session) -> None:
    data["decision"]["chosen"] = _arm(session, tuner)
    data["decision"]["why"] = session.current_reason
    data["decision"]["resumed_pairs"] = tuner["resumed_pairs"] if tuner is not None else 0
    if tuner is None or (decision := tuner["decision"]) is None:
        return
    source = "cache" if decision["from_database"] else _taken(session)
    guard = tuner["guard"]
    drift = (
        f"checked {guard['blocks']} times since, rolled back {guard['rollbacks']} times" if guard["blocks"] else None
    )
    data["decision"].update(
        source=source, speedup=report_candidates.speedup(decision["ratio"] or guard["ratio"]), drift=drift
    )


def _arm(session: Session, tuner: TuningSnapshot | None) -> str:
    """Returns the arm that runs, or the best so far while tuning: the plan and, if it has one, its bucket layout."""
    if session.state == "tuning":
        return tuner["incumbent"] if tuner is not None else EAGER
    decision = tuner["decision"] if tuner is not None else None
    decided = decision["arm"] if decision is not None else ""
    return decided if plan_of(decided) == session.plan else session.plan


def _taken(session: Session) -> str:
    """Returns the source of a decision that this process made."""
    if session.settings.mode != "deterministic":
        return "measured"
    return "fixed-order" if session.settings.plan is None else "plan-file"


def _optimizer(tuned: OptimizerSession) -> Json:
    tuner, speedup = tuned.snapshot(), None
    if tuner is not None and (decision := tuner["decision"]) is not None:
        speedup = report_candidates.speedup(decision["ratio"] or tuner["guard"]["ratio"])
    return parts.optimizer(tuned.name, chosen=tuned.chosen, why=tuned.reason, speedup=speedup, gate=tuned.gate_result)


def _fallbacks(session: Session) -> list[Json]:
    found = [
        parts.fallback(reason, location=report_candidates.location(where), count=count)
        for (where, reason), count in session.history.fallbacks.items()
    ]
    if session.state != "tuned":
        return found
    for region in session.regions:
        outcome = region.outcomes.get(session.candidate_for(region))
        if outcome is not None and not outcome.usable:
            reason = f"{outcome.candidate}: {outcome.reason}"
            found.append(
                parts.fallback(
                    reason, region=f"region {region.index}", location=report_candidates.location(region.where)
                )
            )
    return found


def _fill_cost(cost: Json, tuner: TuningSnapshot | None, session: Session) -> None:
    if tuner is None:
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
    cost["entries"].append(parts.cost_entry("trial", foreground_s=max(0.0, tuner["ledger"]["trial_seconds"])))
    num_operators = sum(region.num_operators for region in session.regions)
    cost.update(balance.of(tuner, _arm(session, tuner), session.settings.mode, num_operators))
    cost["next_run"] = _next_run(tuner, session)


def _next_run(tuner: TuningSnapshot, session: Session) -> str:
    """Returns `cost.next_run` of the report; see schema.json."""
    if not tuner["has_database"] or session.settings.mode == "deterministic":
        return "same"
    is_open = tuner["decision"] is None or session.state == "tuning" or tuner["is_passing"]
    return "resumes" if is_open else "decided"


def _cache_stores(tuner: TuningSnapshot | None, session: Session) -> list[Json]:
    """Returns the hits and misses of each cache."""
    if tuner is None or not tuner["has_database"]:
        return []
    decision = tuner["decision"]
    is_found = bool(decision and decision["from_database"])
    outcomes = [outcome for region in session.regions for outcome in region.outcomes.values()]
    made = sum(getattr(outcome.runner, "num_kernels", 0) for outcome in outcomes)
    found = sum(getattr(outcome.runner, "num_cached_kernels", 0) for outcome in outcomes)
    stores = [parts.cache_store("decisions", hits=int(is_found), misses=int(not is_found))]
    return [*stores, parts.cache_store("kernels", hits=found, misses=made - found)] if made else stores


def _fill_memory(memory: Json, tuner: TuningSnapshot | None, session: Session) -> None:
    arms = tuner["arms"] if tuner is not None else []
    peaks = {arm["name"]: arm["peak_bytes"] or None for arm in arms}
    memory.update(eager_peak_bytes=peaks.get(EAGER), chosen_peak_bytes=peaks.get(_arm(session, tuner)))
    memory["retained"] = tuner["retained"] if tuner is not None else None
    if eager_peak := peaks.get(EAGER):
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


def _plan_file(session: Session) -> str | None:
    """Returns the file that ``plan=`` can replay: this report's .json file, if it has one and tuning has ended."""
    path = session.settings.report
    return str(path) if path is not None and session.state != "tuning" and str(path).endswith(".json") else None

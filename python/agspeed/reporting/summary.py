# SPDX-License-Identifier: Apache-2.0
"""Answers the main questions of a report in a sentence or two each: the choice, its certainty, its cost, the next step.

Facts come first. The few suggestions name the numbers on which they are based.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agspeed.reporting import advice
from agspeed.reporting import format as fmt

__all__ = [
    "Answer",
    "answers",
    "codec",
    "comparison",
    "group",
    "headline",
    "mean_ms",
    "next_steps",
    "optimizer",
    "stragglers",
    "units",
]

Json = Mapping[str, Any]

_INPUT_WAIT_WORTH_NAMING = 0.15
_MAX_SUGGESTIONS = 4
_MANY_FAULTS = 256
"""With fewer page faults, a step has nothing to gain from retained memory."""


class Answer(NamedTuple):
    question: str
    text: str


def answers(report: Json) -> list[Answer]:
    """Returns question and answer pairs, in reading order. The last answer says what to do next."""
    return [
        Answer("What was chosen", _chosen(report)),
        Answer("How sure", _certainty(report)),
        Answer("Is it right", _correctness(report)),
        Answer("What it cost", advice.cost(report)),
        Answer("What to do next", " ".join(next_steps(report))),
    ]


def headline(report: Json) -> str:
    """Returns a few words for the top of the page."""
    speedup = report["decision"]["speedup"]
    if report["status"]["state"] == "tuning":
        late = f", pays only beyond step {report['cost']['break_even_step']:,}" if advice.is_too_short(report) else ""
        return f"still tuning{late}"
    if report["decision"]["chosen"] == "eager" or speedup is None:
        return "runs eagerly" if report["decision"]["chosen"] == "eager" else f"runs {report['decision']['chosen']}"
    return f"{fmt.ratio(speedup['estimate'])} eager's speed"


def group(group: Json) -> str:
    """Returns a sentence about the ranks that train together and the number of gradient stages of each region."""
    hosts = f" on {fmt.plural(group['hosts'], 'host')}" if group["hosts"] else ""
    staged = [f"{region} in {fmt.plural(count, 'stage')}" for region, count in group["stages"].items() if count]
    leave = f"; gradients leave {', '.join(staged)}" if staged else ""
    members = f"{fmt.plural(group['ranks'], 'rank')}{hosts}, {group['wrapper']} over {group['backend']}"
    if group["wrapper"] == "fully_shard":
        return f"Group: {members}{'; all tune as one' if group['together'] is not None else ''}."
    return f"Group: {members}{leave}{_buckets(group['together'])}."


def stragglers(stragglers: Json) -> list[str]:
    """Returns a sentence for each rank that holds or has held the others up, or one that says that there is none."""
    found = [*stragglers["lasting"], *stragglers["ended"]]
    if not found:
        return [f"Stragglers: none in {fmt.plural(stragglers['rounds'], 'comparison')} of all ranks."]
    return [f"Straggler: {finding['text']}." for finding in found]


def codec(codec: Json) -> str:
    """Returns a sentence about the codec that sends the gradients."""
    return f"Codec: {codec['text']}."


def retained_memory(retained: Json | None) -> str:
    """Returns a sentence about the memory of freed tensors that the process keeps, with the page faults of a step.
    Returns "" if there is nothing to say."""
    before = retained["faults_before"] if retained is not None else None
    if retained is None or before is None or not (retained["is_on"] or before >= _MANY_FAULTS):
        return ""
    counted = f"A step has {fmt.plural(round(before), 'page fault')} with torch's allocator"
    if retained["faults_after"] is not None:
        counted += f", and {round(retained['faults_after']):,} while freed tensors keep their memory"
    if retained["is_on"]:
        held, limit = fmt.size(retained["held_bytes"]), fmt.size(retained["limit_bytes"])
        return f"{counted}. They keep it: {held} now, at most {limit}."
    reason = f": {retained['reason']}" if retained["reason"] else ""
    return f"{counted}. Freed tensors do not keep their memory{reason}."


def units(units: Sequence[Json]) -> str:
    """Returns a sentence about the candidates that run the units of a sharded module."""
    alike: dict[tuple[str, str | None], list[str]] = {}
    for unit in units:
        alike.setdefault((unit["runs"], unit["why"]), []).append(unit["name"])
    parts = [
        f"{runs} runs {fmt.plural(len(names), 'unit')} ({', '.join(names)}{f': {why}' if why else ''})"
        for (runs, why), names in alike.items()
    ]
    return f"Sharded by fully_shard: {'; '.join(parts)}."


def comparison(comparison: Json) -> str:
    """Returns a sentence that says whether captured graphs were compared with the user's own code."""
    if comparison["difference"] is not None:
        return f"The captured graphs are not used: {comparison['difference']}."
    if comparison["obstacle"] is not None:
        return f"The captured graphs were not compared with the user's own code: {comparison['obstacle']}."
    steps = fmt.plural(comparison["steps"], "step")
    return f"In {steps} the captured graphs gave the results and gradients of the user's own code."


def _buckets(together: Json | None) -> str:
    if together is None:
        return ""
    return f"{_layout(together)}{_exposed(together.get('step'))}"


def _exposed(step: Json | None) -> str:
    if step is None:
        return ""
    waited = f"{fmt.milliseconds(1e3 * step['exposed_s'])} of a step's communication came after its last gradient"
    predicted = step["predicted_exposed_s"]
    return f"; {waited}" + (f" ({fmt.milliseconds(1e3 * predicted)} predicted)" if predicted is not None else "")


def _layout(together: Json) -> str:
    if together["own_buckets"] is None:
        return "; all tune as one, buckets are left alone"
    own, chosen = together["own_buckets"], together["buckets"]
    if chosen is None:
        return f"; all tune as one, in the wrapper's own buckets of {_caps(own)}"
    return f"; all tune as one, in buckets of {_caps(chosen)} instead of {_caps(own)}"


def _caps(caps: Json) -> str:
    first, rest = fmt.size(caps["first_bytes"]), fmt.size(caps["rest_bytes"])
    return f"{first}, then {rest}" if first != rest else first


def mean_ms(operation: Json) -> float | None:
    """Returns the average milliseconds of an operation in the report's communication; None if none has ended."""
    return 1e3 * float(operation["seconds"]) / int(operation["ended"]) if operation["ended"] else None


def next_steps(report: Json) -> list[str]:
    """Returns sentences of advice, most valuable first; never empty."""
    found = [*advice.on_tuning(report), *_input_wait(report), *_graph_breaks(report), *_recompiles(report)]
    found += _fallbacks(report)
    return found[:_MAX_SUGGESTIONS] or [_settled(report)]


def _chosen(report: Json) -> str:
    decision, status = report["decision"], report["status"]
    text = f"{decision['chosen']}, because {_clause(decision['why'])}."
    chosen = _step_ms(report["plans"], decision["chosen"])
    if decision["speedup"] is not None and chosen is not None and decision["chosen"] != "eager":
        eager = chosen * decision["speedup"]["estimate"]  # eager's own median may come from a few cold steps
        text += f" A step takes {fmt.milliseconds(chosen)} instead of {fmt.milliseconds(eager)}."
    reason = "" if status["reason"] == decision["why"] else f", {_clause(status['reason'])}"
    return f"{text} Status: {status['state']}{reason}.{_optimizers(report['optimizers'])}"


def _optimizers(tuned: Sequence[Json]) -> str:
    """Returns a sentence about each optimizer's step, with leading spaces. Equal sentences appear once."""
    sentences = dict.fromkeys(optimizer(each["name"], each["chosen"], each["why"]) for each in tuned)
    return "".join(f" {sentence}." for sentence in sentences)


def optimizer(name: str, chosen: str, why: str) -> str:
    """Returns how an optimizer's step runs, as a sentence without its full stop."""
    runs = "torch's fused step" if chosen == "fused" else "its own step"
    return f"{name} runs {runs}, because {_clause(why)}"


def _certainty(report: Json) -> str:
    decision = report["decision"]
    speedup = decision["speedup"]
    origin = {
        "measured": "measured in this run",
        "cache": "decided in an earlier run and read from the cache",
        "plan-file": "replayed from a plan file, not timed here",
        "fixed-order": "taken by fixed order, not timed",
        "none": "nothing has been decided",
    }[decision["source"]]
    text = f"The choice was {origin}." if decision["source"] != "none" else "Nothing has been decided yet."
    if decision["source"] == "measured" and all(plan["speedup"] is None for plan in report["plans"]):
        text = "Nothing could be compared with eager in this run."
    if speedup is not None:
        text = (
            f"{fmt.percent(speedup['confidence'])} interval {fmt.interval(speedup)} of eager's speed, from "
            f"{fmt.plural(speedup['pairs'], 'pair')} of real training steps. {text}"
        )
    if decision["resumed_pairs"]:
        text += f" It resumed: {fmt.plural(decision['resumed_pairs'], 'pair')} of an earlier run."
    return text if decision["drift"] is None else f"{text} Since then: {_clause(decision['drift'])}."


def _correctness(report: Json) -> str:
    name = report["decision"]["chosen"]
    if name == "eager":
        return "Eager is the reference: results are those of the untouched model."
    gates = [c["gate"] for c in _all_candidates(report) if c["name"] == name and c["gate"] is not None]
    wrong = {candidate["name"] for candidate in _all_candidates(report) if candidate["state"] == "wrong"}
    text = (
        f" The gate rejected {fmt.plural(len(wrong), 'wrong candidate')}: {', '.join(sorted(wrong))}." if wrong else ""
    )
    if not gates or all(gate["verdict"] == "not-run" for gate in gates):
        return f"The numerics gate has not run on {name}.{text}"
    groups = [(kind, gate[kind]) for gate in gates for kind in ("forward", "gradients", "optimizer") if gate[kind]]
    if not groups:
        return f"{name} passed the numerics gate.{text}"
    kind, worst = max(groups, key=lambda group: _sortable(group[1]["rms"]))
    return (
        f"{name} passed the numerics gate; against fp64 its worst RMS error is {fmt.error(worst['rms'])} ({kind}), "
        f"eager's own is {fmt.error(worst['eager_rms'])}.{text}"
    )


def _input_wait(report: Json) -> list[str]:
    total = sum(share["ms"] for share in report["time_shares"])
    waiting = sum(share["ms"] for share in report["time_shares"] if share["kind"] == "input-wait")
    if total == 0 or waiting / total < _INPUT_WAIT_WORTH_NAMING:
        return []
    return [
        f"Feed the model faster: {fmt.percent(waiting / total)} of a step waits for input, which no compiler helps."
    ]


def _graph_breaks(report: Json) -> list[str]:
    costly = [item for item in report["graph_breaks"] if item["cost_ms"]]
    if not costly:
        return []
    worst = max(costly, key=lambda item: item["cost_ms"])
    return [
        f"Remove the graph break at {fmt.location(worst['location'])} ({_clause(worst['reason'])}): "
        f"it costs {fmt.milliseconds(worst['cost_ms'])} per step."
    ]


def _recompiles(report: Json) -> list[str]:
    total = sum(item["count"] for item in report["recompiles"])
    if total < 3:
        return []
    return [
        f"Avoid recompiles, {total:,} so far: where sizes change, pad to few of them or pass dynamic=True; where the "
        "value of an .item() does, keep it a tensor."
    ]


def _fallbacks(report: Json) -> list[str]:
    if not report["fallbacks"]:
        return []
    first = max(report["fallbacks"], key=lambda item: int(item["count"]))
    return [
        f"See the fallbacks: {_place(first)} runs eagerly ({_clause(first['reason'])}); "
        "AGSPEED_STRICT=1 raises instead."
    ]


def _settled(report: Json) -> str:
    if report["decision"]["chosen"] == "eager":
        return "Nothing: training runs as it did before."
    return "Nothing: keep the cache directory and the next run starts tuned."


def _all_candidates(report: Json) -> list[Json]:
    return [*report["plans"], *(c for region in report["regions"] for c in region["candidates"])]


def _step_ms(plans: Sequence[Json], name: str) -> float | None:
    return next((plan["step_ms"] for plan in plans if plan["name"] == name), None)


def _place(item: Json) -> str:
    if item["location"] is not None:
        return fmt.location(item["location"])
    return "one place" if item["region"] is None else f"region {item['region']}"


def _clause(sentence: str) -> str:
    """Returns a sentence in a form for the middle of another sentence."""
    return sentence.strip().rstrip(".")


def _sortable(error: float | str) -> float:
    return float(error)

# SPDX-License-Identifier: Apache-2.0
"""Says whether tuning is worth its cost, in this run and in the next one, and what to do if a run is too short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agspeed.reporting import format as fmt

__all__ = ["cost", "is_too_short", "on_tuning"]

Json = Mapping[str, Any]

_FAR = 10
"""If break-even is at more than this many times the steps so far, this run is not expected to reach it."""
_NEXT_RUN = {
    "decided": "Next time: 0 s of tuning, the next run starts from this decision.",
    "resumes": "Next time: tuning goes on from these measurements.",
    "same": "Next time: the same again.",
}
_CHEAPER = {
    "max": ("auto", "which never spends more than a fifth of the time trained on tuning"),
    "auto": ("fast-start", "which takes earlier decisions and plans that compile within a second"),
    "fast-start": ("off", "which changes nothing"),
}


def is_too_short(report: Json) -> bool:
    """Returns whether this run is probably too short for tuning to pay."""
    break_even = report["cost"]["break_even_step"]
    return break_even is not None and break_even > _FAR * report["timeline"]["steps"]


def cost(report: Json) -> str:
    """Returns sentences on the cost of tuning and on whether it pays in this run and in the next one."""
    figures = report["cost"]
    if not figures["entries"] and not figures["foreground_s"] and not figures["background_s"]:
        return "Nothing so far."
    foreground, background = fmt.seconds(figures["foreground_s"]), fmt.seconds(figures["background_s"])
    if report["decision"]["source"] == "cache":
        spent = f"No tuning: {foreground} of training time to capture, load and check the decision of an earlier run."
    else:
        spent = f"{foreground} of training time and {background} in the background."
    return " ".join(filter(None, [spent, _worth_here(report), _NEXT_RUN[figures["next_run"]]]))


def on_tuning(report: Json) -> list[str]:
    """Returns at most one sentence of advice on whether to continue tuning."""
    if is_too_short(report):
        return [_instead(report)]
    if report["status"]["state"] != "tuning":
        return []
    pending = sum(plan["state"] == "pending" for plan in report["plans"])
    if not report["timeline"]["steps"] or not pending:
        return ["Keep training: candidates are tried on real steps."]
    return [f"Keep training: {fmt.plural(pending, 'candidate')} still to decide, on real steps."]


def _worth_here(report: Json) -> str:
    figures, decision, steps = report["cost"], report["decision"], report["timeline"]["steps"]
    break_even = figures["break_even_step"]
    ran = "1 step has run" if steps == 1 else f"{steps:,} steps have run"
    if break_even is None and report["status"]["state"] == "tuning":
        return "Worth it here: not known yet, nothing has proven faster than eager."
    if break_even is None:
        is_known = decision["chosen"] == "eager" or decision["speedup"] is not None
        is_spent = is_known and figures["foreground_s"] > 0
        return "Worth it here: no, there is no saving to earn it back with." if is_spent else ""
    if steps >= break_even:
        saved = fmt.seconds(max(figures["saved_s"], 0.0))
        return f"Worth it here: yes, {saved} saved. Earned back at step {break_even:,}; {ran}."
    left = f", with about {fmt.seconds(figures['left_s'])} of tuning yet to come" if figures["left_s"] else ""
    return f"Worth it here: only in a run beyond step {break_even:,}{left}; {ran}."


def _instead(report: Json) -> str:
    """Returns advice for a run that ends before tuning has paid."""
    figures, steps = report["cost"], report["timeline"]["steps"]
    pays = f"Tuning pays only in a run beyond step {figures['break_even_step']:,}, and {steps:,} have run:"
    if report["status"]["state"] != "tuning" and figures["next_run"] == "decided":
        return f"{pays} this one bought the decision from which the next starts, with 0 s of tuning{_command(report)}."
    setting = report["header"]["settings"].get("mode", {"value": "auto", "origin": "default"})
    mode, meaning = _CHEAPER.get(str(setting["value"]), _CHEAPER["auto"])
    if setting["origin"] == "keyword":
        return f'{pays} for a shorter one pass mode="{mode}" to optimize, {meaning}.'
    return f'{pays} for a shorter one take mode="{mode}", {meaning}{_command(report, f"AGSPEED_MODE={mode} ")}.'


def _command(report: Json, environment: str = "") -> str:
    command = report["reproduce"]["command"]
    return f": {environment}{command}" if command else ""

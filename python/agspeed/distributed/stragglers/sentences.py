# SPDX-License-Identifier: Apache-2.0
"""Sentences about findings, for the log, the status and the report."""

from __future__ import annotations

from agspeed.distributed.stragglers.judge import Finding


def sentence(finding: Finding) -> str:
    """Returns a sentence without its full stop, e.g. "rank 5 (node2) computes 14 % longer since step 3,100"."""
    is_host = finding.num_ranks > 1
    who = f"all {finding.num_ranks} ranks of {finding.host}" if is_host else f"rank {finding.rank} ({finding.host})"
    if finding.until_step is not None:
        span = f"{_share(finding)} from step {finding.since_step:,} to step {finding.until_step:,}"
        return f"{_subject(finding, who)} no longer {'hold' if is_host else 'holds'} the others up: {span}"
    since = f"since step {finding.since_step:,}"
    match finding.kind:
        case "compute" | "host":
            whose = "their" if is_host else "its"
            reason = f", because other processes use {whose} host's processors" if finding.is_starved else ""
            return f"{who} {'compute' if is_host else 'computes'} {_share(finding)} {since}{reason}"
        case "input":
            return f"{who} waits for its input for {_share(finding)} {since}"
        case "rail":
            return f"{_subject(finding, who)} carries {_share(finding)} {since}"


def _subject(finding: Finding, who: str) -> str:
    return f"rail {finding.rail} of {who}" if finding.kind == "rail" else who


def _share(finding: Finding) -> str:
    percent = f"{100 * finding.share:.0f} %"
    match finding.kind:
        case "compute" | "host":
            return f"{percent} longer"
        case "input":
            return f"{percent} of each step"
        case "rail":
            return f"{percent} of its rate"

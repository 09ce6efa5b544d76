# SPDX-License-Identifier: Apache-2.0
"""A valid report whose texts attack the page that shows them."""

from __future__ import annotations

import copy

from agspeed.reporting import model
from tests.python.reporting import report_sample

# The headings of the page's charts.
CHARTS = (
    "Step time over the run",
    "Step time by step",
    "Candidates",
    "Errors against fp64",
    "Where time goes",
    "Memory",
    "Break-even",
)
ATTACK = "\"'></title></style></svg></script><script>window.hacked = true</script><img src=x onerror=a()>{{ 7 * 7 }}"


def poisoned(value):
    """Returns the same document with every free text replaced by an attack."""
    if isinstance(value, dict):
        return {key: poisoned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner) for inner in value]
    return value + ATTACK if isinstance(value, str) else value


def poisoned_report():
    data = report_sample.report()
    attacked = poisoned(copy.deepcopy(data))
    kept = ("kind", "schema_version", "timeline", "kill_switch")
    attacked |= {name: data[name] for name in kept}
    for plan, original in zip(attacked["plans"], data["plans"], strict=True):
        plan["state"] = original["state"]
        plan["gate"] = original["gate"]
    attacked["regions"], attacked["cost"] = data["regions"], data["cost"]
    attacked["status"]["state"] = "tuned"
    attacked["decision"]["source"] = "measured"
    for share, original in zip(attacked["time_shares"], data["time_shares"], strict=True):
        share["kind"] = original["kind"]
    for when in ("lasting", "ended"):
        for finding, original in zip(attacked["stragglers"][when], data["stragglers"][when], strict=True):
            finding["kind"] = original["kind"]
    attacked["regions"][0]["location"]["file"] += ATTACK
    attacked["timeline"]["phases"][2]["candidate"] += ATTACK
    attacked["plans"][1]["gate"]["forward"]["worst"] += ATTACK
    attacked["header"]["settings"][ATTACK] = {"value": ATTACK, "origin": ATTACK}
    attacked["header"]["versions"][ATTACK] = ATTACK
    model.validate(attacked)
    return attacked

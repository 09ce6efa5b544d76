# SPDX-License-Identifier: Apache-2.0
"""What is between hosts, rail by rail: who answers, how fast, in what packets, with which key (see README.md here).

Plain sockets bound to each interface, no torch and no native extension. `survey_peers` looks from one host at others
where a `Listener` is open; `findings` says in sentences what is wrong, and what to do.
"""

from agspeed.netprobe.findings import Finding, findings
from agspeed.netprobe.keys import load_job_key
from agspeed.netprobe.listener import Listener
from agspeed.netprobe.model import HostRecord, Path, Rail, Survey
from agspeed.netprobe.peers import survey_peers

__all__ = [
    # keep-sorted
    "Finding",
    "HostRecord",
    "Listener",
    "Path",
    "Rail",
    "Survey",
    "findings",
    "load_job_key",
    "survey_peers",
]

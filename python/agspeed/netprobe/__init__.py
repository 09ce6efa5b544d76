# SPDX-License-Identifier: Apache-2.0
"""Checks the network between hosts, rail by rail: ports, rates, packet sizes and job keys (see README.md here).

It uses plain sockets that are bound to each interface, no torch and no native extension. `survey_peers` checks the
paths from one host to others, where a `Listener` is open. `findings` describes each fault and its remedy in sentences.
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

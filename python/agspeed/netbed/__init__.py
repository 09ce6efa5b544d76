# SPDX-License-Identifier: Apache-2.0
"""A test bed for networks on one machine: hosts are network namespaces with several shaped rails and injected faults.

See tests/fault/README.md for the concepts and an example. It uses no torch, and changes nothing outside the namespaces
that it creates.
"""

from agspeed.netbed.bed import Host, Netbed
from agspeed.netbed.mptcp import mptcp
from agspeed.netbed.rail import Counters, Rail, corruption_unavailable
from agspeed.netbed.stream import Flow, stream
from agspeed.netbed.system import NetbedError, unavailable
from agspeed.netbed.tasks import Job, Outcome, Task

__all__ = [
    # keep-sorted
    "Counters",
    "Flow",
    "Host",
    "Job",
    "Netbed",
    "NetbedError",
    "Outcome",
    "Rail",
    "Task",
    "corruption_unavailable",
    "mptcp",
    "stream",
    "unavailable",
]

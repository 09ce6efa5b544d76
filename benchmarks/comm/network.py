# SPDX-License-Identifier: Apache-2.0
"""A case's network: turns the rates in the case into a bed and into the bounds of what the network can carry."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from agspeed import netbed
from agspeed.netbed import rail
from benchmarks.comm.bounds import PAYLOAD, Link

HOST_LIMIT = 4_000_000_000  # bits per second, all hosts together; above it the processor limits, not the links
UNSHAPED = "unshaped"


def build(case: Mapping[str, Any]) -> netbed.Netbed:
    """Returns the bed of a case; enter it to build it. Raises ValueError if its rates are too much for two cores."""
    if (total := sum(sum(map(_bits, rates)) for rates in host_rates(case))) > HOST_LIMIT:
        raise ValueError(f"case {case['name']}: {total / 1e9:g} Gbit/s in all, at most {HOST_LIMIT / 1e9:g} are links'")
    return netbed.Netbed(
        hosts=case["hosts"],
        rails=len(case["rates"]),
        rate=[_or_none(rate) for rate in case["rates"]],
        host_rates={int(at): [_or_none(rate) for rate in rates] for at, rates in case.get("host_rates", {}).items()},
        shape_ingress=case.get("shape_ingress", False),
    )


def host_rates(case: Mapping[str, Any]) -> list[list[str]]:
    """Each host's rates, rail by rail."""
    special = case.get("host_rates", {})
    return [special.get(str(host), case["rates"]) for host in range(case["hosts"])]


def is_shaped(case: Mapping[str, Any]) -> bool:
    return all(rate != UNSHAPED for rates in host_rates(case) for rate in rates)


def links(rates: Sequence[Sequence[str]]) -> list[Link]:
    """Returns the link of each host with these shaped rates."""
    return [Link(sum(map(_bits, each)) / 8 * PAYLOAD, len(each) * rail.BURST_BYTES * PAYLOAD) for each in rates]


def stream(bed: netbed.Netbed, case: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Sends raw TCP around the ring over all rails. Returns the median rate of each rail, the share of what the rails
    can carry, and the processor seconds of both ends per GB.

    A single host has no ring; then the rates are empty.
    """
    if len(bed.hosts) < 2:
        return {"bits_per_second": []}
    flows = netbed.stream(bed, seconds, compares=False)
    found: dict[str, Any] = {
        "bits_per_second": [
            statistics.median(flow.bits_per_second for flow in flows if flow.rail == at)
            for at in range(len(case["rates"]))
        ],
        "cpu_seconds_per_gb": 1e9 * sum(flow.cpu_seconds for flow in flows) / sum(flow.num_bytes for flow in flows),
    }
    if is_shaped(case):
        rates = [list(map(_bits, each)) for each in host_rates(case)]
        ceiling = sum(min(rates[flow.source][flow.rail], rates[flow.destination][flow.rail]) for flow in flows)
        found["share"] = sum(flow.bits_per_second for flow in flows) / (ceiling * PAYLOAD)
    return found


def _or_none(rate: str) -> str | None:
    return None if rate == UNSHAPED else rate


def _bits(rate: str) -> int:
    return 0 if rate == UNSHAPED else rail.bits_per_second(rate)

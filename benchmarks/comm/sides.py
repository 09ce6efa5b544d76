# SPDX-License-Identifier: Apache-2.0
"""The ways to run a collective that are compared: one table, one row for each. Readable without torch.

Gloo sends a whole operation over one interface. Given several interfaces it uses them in turn. A fair time of
"gloo-list" is therefore the mean over as many operations as there are rails (`takes_turns`).

agspeed does not code values here, because the values of most parts are artificial, and their codes are much shorter
than codes of real gradients. The side "agspeed-coded" is for real gradients.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

OURS, CONTROL = "agspeed", "control"
_RAILS = "all rails"  # placeholder for the names of a host's interfaces, separated by commas


@dataclass(frozen=True)
class Side:
    """A backend of torch.distributed and the environment of its processes."""

    name: str
    backend: str
    environment: Mapping[str, str] = field(default_factory=dict)
    takes_turns: bool = False
    over_mptcp: bool = False

    def variables(self, rails: str) -> dict[str, str]:
        return {key: rails if value == _RAILS else value for key, value in self.environment.items()}


def _ours(name: str, **environment: str) -> Side:
    return Side(name, "agspeed", {"AGSPEED_SOCKET_IFNAME": _RAILS, "AGSPEED_WIRE_CODING": "off", **environment})


SIDES: dict[str, Side] = {
    side.name: side
    for side in (
        _ours(OURS),
        _ours(CONTROL),
        _ours("agspeed-integrity", AGSPEED_COMM_MODE="integrity"),
        _ours("agspeed-encrypted", AGSPEED_COMM_MODE="encrypted"),
        _ours("agspeed-coded", AGSPEED_WIRE_CODING="auto"),
        _ours("horovod"),
        _ours("horovod-unfused", HOROVOD_FUSION_THRESHOLD="0"),
        Side("gloo", "gloo", {"GLOO_SOCKET_IFNAME": "rail0"}),
        Side("gloo-list", "gloo", {"GLOO_SOCKET_IFNAME": _RAILS}, takes_turns=True),
        Side("gloo-mptcp", "gloo", {"GLOO_SOCKET_IFNAME": "rail0"}, over_mptcp=True),
    )
}


def find(name: str) -> Side:
    """Returns the row called `name`. Raises ValueError if there is none."""
    if name not in SIDES:
        raise ValueError(f"unknown side {name!r}; known: {', '.join(SIDES)}")
    return SIDES[name]


def job_key() -> dict[str, str]:
    """Returns a new secret for the ranks of one run. With it, agspeed authenticates all messages."""
    return {"AGSPEED_JOB_KEY": secrets.token_hex(16)}

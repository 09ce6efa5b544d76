# SPDX-License-Identifier: Apache-2.0
"""Which ranks run on which host, and the variables by which each rank knows its numbers. Pure.

Ranks fill the hosts in their order: with node0:2 and node1:2, ranks 0 and 1 run on node0, ranks 2 and 3 on node1.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from agspeed.errors import UserError
from agspeed.launch.hosts import Host
from agspeed.membership.actions import Epoch
from agspeed.membership.messages import Place

__all__ = ["Share", "place", "places", "variables"]


@dataclass(frozen=True)
class Share:
    """The ranks that run on one host."""

    host: Host
    ranks: range

    def __str__(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        return f"host {self.host.name} ({f'rank {first}' if first == last else f'ranks {first} to {last}'})"


def place(hosts: Sequence[Host], num_ranks: int) -> tuple[Share, ...]:
    """Returns the hosts that get ranks, with their ranks. Raises: UserError if there are too few slots."""
    slots = sum(host.slots for host in hosts)
    if slots < num_ranks:
        raise UserError(
            f"Requested more processes ({num_ranks}) than there are available slots ({slots}); start fewer ranks, or "
            "name more slots."
        )
    shares, first = [], 0
    for host in hosts:
        behind = min(first + host.slots, num_ranks)
        if behind > first:
            shares.append(Share(host, range(first, behind)))
        first = behind
    return tuple(shares)


def variables(shares: Sequence[Share], rank: int, address: str, port: int) -> dict[str, str]:
    """The variables of one rank. address, port: where rank 0 listens."""
    own = next(share for share in shares if rank in share.ranks)
    local_rank = own.ranks.index(rank)
    # The ranks of other hosts with the same local rank, as Horovod counts them.
    peers = [share for share in shares if len(share.ranks) > local_rank]
    size, local_size = str(shares[-1].ranks.stop), str(len(own.ranks))
    return {
        "HOROVOD_HOSTNAME": socket.gethostname() if own.host.is_local else own.host.name.rpartition("@")[2],
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": local_size,
        "HOROVOD_CROSS_RANK": str(peers.index(own)),
        "HOROVOD_CROSS_SIZE": str(len(peers)),
        # Variables for torch.distributed.
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": local_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }


def places(epoch: Epoch, hosts: Sequence[int]) -> list[Place]:
    """Returns the place of each rank of an elastic job's epoch. hosts: by rank, the number of its host."""
    local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    order = sorted(set(hosts), key=hosts.index)
    found = []
    for rank, host in enumerate(hosts):
        peers = [each for each in order if hosts.count(each) > local[rank]]
        found.append(
            Place(
                number=epoch.number,
                rank=rank,
                size=len(hosts),
                source=epoch.source,
                has_lost=epoch.has_lost,
                local_rank=local[rank],
                local_size=hosts.count(host),
                cross_rank=peers.index(host),
                cross_size=len(peers),
            )
        )
    return found

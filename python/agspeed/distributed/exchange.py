# SPDX-License-Identifier: Apache-2.0
"""Exchange: the ranks around a wrapper exchange records over a connection of their own.

An exchange uses a backend directly and creates no group of torch.distributed. Torch names groups by a counter, and
ranks that belong to further groups would count differently. No collective of the user is ever paired with one of ours.
Gloo does not know the job key, so each record is a message with a proof (`messages.py`).
"""

from __future__ import annotations

import datetime
import time
from typing import Any

import torch
from torch import distributed

from agspeed import native
from agspeed.distributed import groups
from agspeed.distributed.layouts import BucketCost
from agspeed.distributed.messages import MOST_BYTES, MessageError
from agspeed.distributed.room import Room
from agspeed.torch_compat import c10d
from agspeed.torch_compat.c10d import timeout_of

_PACKET_BYTES = 2048
"""Size of each rank's packet in the first all-gather. Longer records need a second all-gather."""
_LENGTH_BYTES = 8
_CREATION_TIMEOUT = datetime.timedelta(minutes=2)
"""Longest time for connecting. An exchange of records waits as long as the user's reductions do. If it failed at one
rank while the others still waited for that rank, they could change to a bucket layout that the rank does not have."""
_STANDING_STILL = 0.4
"""Share of the collectives' timeout that a rank may spend on something else."""
_PROBED_BYTES = (64 << 10, 1 << 20, 4 << 20)
_PROBES = 3


class Exchange:
    """One rank's end of the connection. All ranks create it at the same step and call the same methods in order."""

    def __init__(self, user_group: Any, room: Room, name: str) -> None:
        """Connects the ranks, which find each other's addresses under `name` in `room`.

        No other exchange of this process may have the same `name`.
        """
        self._rank, self._size = distributed.get_rank(user_group), distributed.get_world_size(user_group)
        self._seal, self._number = room.seal.at(name), 0
        self._timeout = timeout_of(user_group)
        limit = min(_CREATION_TIMEOUT, longest_wait(user_group))
        self._backend = _connected(user_group, c10d.room_in(room.store, name), name, limit)
        self._gather(b"", 1, limit)  # returns once all ranks are connected

    def of_records(self, mine: bytes) -> list[bytes]:
        """Sends this rank's record and returns the records of all ranks, by rank.

        Raises: MessageError if a packet is not a record of this exchange.
        """
        self._number += 1
        seals = [self._seal.at(str(self._number), str(rank)) for rank in range(self._size)]
        sealed = seals[self._rank].sealed(mine)
        packets = self._gather(len(sealed).to_bytes(_LENGTH_BYTES, "little") + sealed, _PACKET_BYTES, self._timeout)
        lengths = [int.from_bytes(packet[:_LENGTH_BYTES], "little") for packet in packets]
        if max(lengths) > MOST_BYTES:
            rank = lengths.index(max(lengths))
            raise MessageError(f"rank {rank}'s record has {lengths[rank]} bytes, at most {MOST_BYTES} are exchanged")
        if max(lengths) > _PACKET_BYTES - _LENGTH_BYTES:
            packets = self._gather(bytes(_LENGTH_BYTES) + sealed, _LENGTH_BYTES + max(lengths), self._timeout)
        records = [packet[_LENGTH_BYTES:][:length] for packet, length in zip(packets, lengths, strict=True)]
        return [seals[rank].opened(record, f"rank {rank}'s record") for rank, record in enumerate(records)]

    def bucket_cost(self) -> BucketCost:
        """Measures the cost of a reduction on this connection."""
        times = []
        for num_bytes in _PROBED_BYTES:
            tensor, seconds = torch.zeros(num_bytes // 4), []
            for _ in range(_PROBES):
                begun = time.perf_counter()
                self._backend.allreduce([tensor]).wait()
                seconds.append(time.perf_counter() - begun)
            times.append((num_bytes, min(seconds)))
        return BucketCost.fitted(times)

    def close(self) -> None:
        """Disconnects. Ranks that wait for this one get an error."""
        self._backend.shutdown()
        self._backend = None

    def _gather(self, data: bytes, size: int, timeout: datetime.timedelta) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data[:size].ljust(size, b"\0")), dtype=torch.uint8)
        all_of_them = torch.empty(self._size * size, dtype=torch.uint8)
        c10d.all_gather(self._backend, all_of_them, mine, timeout)
        found = all_of_them.numpy().tobytes()
        return [found[rank * size : (rank + 1) * size] for rank in range(self._size)]


def longest_wait(group: Any) -> datetime.timedelta:
    """Returns how long a rank may stand still before the others' collectives are at risk of a timeout."""
    return _STANDING_STILL * timeout_of(group)


def _connected(user_group: Any, store: Any, name: str, timeout: datetime.timedelta) -> Any:
    rank, ranks = distributed.get_rank(user_group), distributed.get_process_group_ranks(user_group)
    if groups.backend_of(user_group) != "agspeed":
        return c10d.gloo(store, rank, len(ranks), timeout)
    extension: Any = native.load()
    return extension.create_process_group(c10d.backend_options(store, rank, ranks, timeout, name))

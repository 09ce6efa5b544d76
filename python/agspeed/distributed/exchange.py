# SPDX-License-Identifier: Apache-2.0
"""Exchange: records among the ranks around a wrapper, over a connection of their own.

A backend of torch's, but no group of torch.distributed's: those have names that ranks count, and ranks that are in
other groups besides count otherwise; none of the user's collectives is ever paired with one of ours.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, ProcessGroupGloo, _DistributedBackendOptions

from agspeed import native
from agspeed.distributed import groups
from agspeed.distributed.layouts import BucketCost

_PACKET_BYTES = 2048
"""Of a record in the first exchange; longer ones take a second."""
_LENGTH_BYTES = 8
_CREATION_TIMEOUT = datetime.timedelta(minutes=2)
"""Of connecting, at most. An exchange waits for as long as the user's reductions do: were it to fail at one rank that
the others still wait for, they could go on to another bucket layout than that one."""
_STANDING_STILL = 0.4
"""Of the time that the user's collectives have: for so long a rank may do something else."""
_PROBED_BYTES = (64 << 10, 1 << 20, 4 << 20)
_PROBES = 3


class Exchange:
    """Of one rank; all make theirs at the same step, and call its methods alike."""

    def __init__(self, user_group: Any, store: Any, name: str) -> None:
        """Connects. store: has room for this under `name`, which no other one of this process has."""
        self._size = distributed.get_world_size(user_group)
        self._timeout = timeout_of(user_group)
        limit = min(_CREATION_TIMEOUT, longest_wait(user_group))
        self._backend = _connected(user_group, PrefixStore(name, store), name, limit)

    def of_records(self, mine: bytes) -> list[bytes]:
        """The records of all ranks, by rank."""
        packets = self._gather(len(mine).to_bytes(_LENGTH_BYTES, "little") + mine, _PACKET_BYTES)
        lengths = [_LENGTH_BYTES + int.from_bytes(packet[:_LENGTH_BYTES], "little") for packet in packets]
        if max(lengths) > _PACKET_BYTES:
            packets = self._gather(bytes(_LENGTH_BYTES) + mine, max(lengths))
        return [packet[_LENGTH_BYTES:length] for packet, length in zip(packets, lengths, strict=True)]

    def bucket_cost(self) -> BucketCost:
        """Of a reduction, measured."""
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
        """Ranks that wait here for this one learn that it does not come."""
        self._backend.shutdown()
        self._backend = None

    def _gather(self, data: bytes, size: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data[:size].ljust(size, b"\0")), dtype=torch.uint8)
        all_of_them = torch.empty(self._size * size, dtype=torch.uint8)
        options = AllgatherOptions()
        options.timeout = self._timeout
        self._backend._allgather_base(all_of_them, mine, options).wait()
        found = all_of_them.numpy().tobytes()
        return [found[rank * size : (rank + 1) * size] for rank in range(self._size)]


def timeout_of(group: Any) -> datetime.timedelta:
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout  # type: ignore[no-any-return]
        except Exception:  # no such device, or a backend that keeps its time to itself
            continue
    return distributed.constants.default_pg_timeout


def longest_wait(group: Any) -> datetime.timedelta:
    """For how long a rank may stand still without the others' collectives running out of time."""
    return _STANDING_STILL * timeout_of(group)


def _connected(user_group: Any, store: Any, name: str, timeout: datetime.timedelta) -> Any:
    rank, size = distributed.get_rank(user_group), distributed.get_world_size(user_group)
    if groups.backend_of(user_group) != "agspeed":
        return ProcessGroupGloo(store, rank, size, timeout)
    options = _DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, size
    options.timeout, options.group_id = timeout, name
    options.global_ranks_in_group = distributed.get_process_group_ranks(user_group)
    extension: Any = native.load()
    return extension.create_process_group(options)

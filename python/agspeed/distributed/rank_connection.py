# SPDX-License-Identifier: Apache-2.0
"""RankConnection: what connects the ranks of a group that tune together: announcements, an exchange, and deadlines.

Before the first sync, the ranks *announce* themselves:

1. At its first training forward, each rank writes a description of itself to the job's store.
2. At its second backward, rank 0 finds all announcements, because the first backward could not end before every rank's
   forward. If the ranks do not fit together, rank 0 replies so in the store.
3. If they do and tuning is due at rank 0, rank 0 replies that tuning begins with the next backward. It writes before
   its gradients leave, so every rank finds the reply once its reductions have ended.

Ranks poll the store in a few backwards only (2, 3, 4, 6, 8, 12 ...). A job in which tuning never pays makes a dozen
requests in total. Threads: the training thread, or the thread of a hook.
"""

from __future__ import annotations

import contextlib

from agspeed.distributed.announcements import Announcement, HostGroup, Reply, ReplySlot, is_looked_at, judged
from agspeed.distributed.exchange import Exchange
from agspeed.distributed.layouts import BucketCost
from agspeed.distributed.messages import MessageError
from agspeed.distributed.rank_group import RankGroup
from agspeed.distributed.room import room_of
from agspeed.distributed.stall_limit import StallLimit
from agspeed.distributed.standstill import LONGEST_S


class RankConnection:
    """One rank's end of the connection. All ranks create it in the same training forward."""

    def __init__(self, group: RankGroup, announcement: Announcement) -> None:
        """Writes the announcement."""
        self.room, self._name = room_of(group.process_group, "rank_sync")
        self.stall_limit = StallLimit(group.process_group, LONGEST_S)
        self.host_group: HostGroup | None = None
        """This rank's host group; None until rank 0's reply, and if no other rank shares its host and cache."""
        self._group, self._announcement = group, announcement
        self._announcements: list[Announcement | None] = []
        self._names: list[str] = []
        self._reply_slot = ReplySlot(self.room, group.size)
        self._exchange: Exchange | None = None
        self._num_exchanges = 0
        self.room.put(f"announcement/{group.rank}", announcement.to_json())

    # --- announcements and rank 0's reply -----------------------------------------------------------------------------

    def find_reply(self, backward: int, *, is_due: bool) -> Reply | None:
        """Returns rank 0's reply if it holds in the backward of this number, which begins. Rank 0 may write it there.

        Args:
            is_due: whether tuning is due at this rank.

        Raises: MessageError if no rank of this job wrote the reply.
        """
        reply = self._reply_slot.of_backward(backward)
        if reply is not None:
            self._accept(reply)
        elif self._group.rank == 0 and is_looked_at(backward):
            self._lead(backward, is_due)
        return reply

    def _accept(self, reply: Reply) -> None:
        if reply.refused is not None:
            return
        if reply.nonces[self._group.rank] != self._announcement.nonce:
            raise MessageError("rank 0's reply in the job's store belongs to an earlier job: it was copied there")
        self.room.bind(reply.token)
        self.host_group = HostGroup.of(self._group.rank, reply.token, reply.homes)

    def _lead(self, backward: int, is_due: bool) -> None:
        refused = None
        if not self._names:
            try:
                self._announcements = [self._announcement_of(rank) for rank in range(self._group.size)]
            except MessageError as error:
                self._announcements, refused = [None] * self._group.size, str(error)
            self._names, why_not = judged(self._announcements)
            refused = refused or why_not
        if refused is not None or is_due:
            self._reply_slot.put(Reply.made(backward + 1, self._announcements, self._names, refused))

    def _announcement_of(self, rank: int) -> Announcement | None:
        return self.room.find(f"announcement/{rank}", Announcement.parse)

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the connection for the records. All ranks do so in the same backward."""
        self._num_exchanges += 1
        self._exchange = Exchange(self._group.process_group, self.room, f"{self._name}, {self._num_exchanges}")

    def exchange(self, record: bytes) -> list[bytes]:
        """Sends this rank's record and returns the records of all ranks, by rank. Requires: the connection is open.

        Raises: MessageError if a packet is not a record of this exchange.
        """
        assert self._exchange is not None
        return self._exchange.of_records(record)

    def bucket_cost(self) -> BucketCost:
        """Measures the cost of a reduction. Requires: the connection is open."""
        assert self._exchange is not None
        return self._exchange.bucket_cost()

    def close(self) -> None:
        """Disconnects, if the connection is open. Peers that wait for this rank in an exchange get an error."""
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            with contextlib.suppress(Exception):  # peers may be gone; the user's backward must not fail for that
                exchange.close()

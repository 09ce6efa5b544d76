# SPDX-License-Identifier: Apache-2.0
"""Rank sync: the ranks around one wrapper exchange the records of their tuners.

`rank_group.py` says what a wrapper is, and `rank_connection.py` how the ranks find each other. Each rank has a copy of
one tuner (runtime/tune/group_tuner.h). The copies stay equal because all of them get the same records at the same step.
The ranks exchange the records at the beginning of a backward that reduces gradients: it is the one place that all ranks
reach in the same step, whatever else they do. The exchange has a connection of its own, so no collective of the user is
ever paired with one of ours.

Training never waits for an announcement. All ranks do slow work (captures, loads) at the same step and continue
together (`standstill.py`). Once the tuners have decided, the hooks and the connection are removed. They return only if
all ranks doubt the decision (`resync.py`).

Threads: the training thread only, except for the hooks of tensors (`backwards.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from agspeed.distributed.announcements import Announcement, is_looked_at
from agspeed.distributed.backwards import Backwards
from agspeed.distributed.layouts import BucketCost, layout_of
from agspeed.distributed.rank_connection import RankConnection
from agspeed.distributed.rank_group import RankGroup
from agspeed.distributed.resync import Resync
from agspeed.distributed.standstill import Standstill
from agspeed.log import logger, warn_once

if TYPE_CHECKING:
    from agspeed._native import GroupTuner


class RankSync(Backwards):
    """The rank syncs of one session under a wrapper (see the module's docstring). Hooks of the wrapper own it."""

    def __init__(
        self,
        group: RankGroup,
        called: nn.Module,
        announcement: Announcement,
        make_tuner: Callable[[list[str]], GroupTuner],
        on_news: Callable[[], None],
    ) -> None:
        """Writes the announcement. All ranks must create this object in their first training forward in the wrapper.

        Args:
            called: see `Backwards`.
            make_tuner: makes this rank's copy of the tuner from the names of all ranks.
            on_news: called within a backward when tuning begins or is refused, and when syncs resume or fail.
        """
        super().__init__(group, called)
        self.tuner: GroupTuner | None = None
        """This rank's copy of the tuner; None until tuning begins."""
        self.refused: str | None = None
        """Why the ranks do not tune, as a sentence; None unless they refused."""
        self.cost: BucketCost | None = None
        """The cost of a reduction among these ranks; None until the tuners are about to decide."""
        self.group = group
        group.num_sessions += 1
        self.layouts = group.layouts()
        """The wrapper's layouts; None if they must not change."""
        self.connection = RankConnection(group, announcement)
        room = self.connection.room
        self._make_tuner, self._on_news = make_tuner, on_news
        self._left_because: str | None = None
        self._standstill, self._is_capturing = Standstill(room, group.rank, group.size), False
        self._resync = Resync(room, group.rank, group.size, group.num_collectives)
        self._is_due = False
        self._num_backwards = self._num_quiet = 0
        self._uses_device = group.uses_device
        self._listen()

    @property
    def layout(self) -> str:
        """The name of the layout in the latest reducing backward; "" for the user's own."""
        return self.layouts.in_backward if self.layouts is not None else ""

    def why_replaced(self) -> str | None:
        """Why the ranks will not sync here again, as a sentence, or None. Call it while the module is being called."""
        if self.group.is_called():
            return None
        return "its DistributedDataParallel was replaced while the ranks tuned: restore and optimize it to tune anew"

    def may_begin(self, is_due: bool) -> bool:
        """Whether tuning has begun at all ranks; it begins once it is due at rank 0. is_due: whether it is due here."""
        self._is_due = is_due
        return self.tuner is not None and self.refused is None

    def leave(self, reason: str) -> None:
        """Ends tuning at this rank. The next sync passes the reason to the other ranks."""
        if self.tuner is not None:
            self.tuner.leave(reason)
        elif self.refused is None and self._left_because is None:
            self._left_because = reason

    def seek_resync(self) -> None:
        """Seeks a resync, because this rank doubts the decision. Syncs resume once all ranks doubt it.

        Call it between two steps, as often as wanted while the doubt lasts.
        """
        if not self.group.is_alive or self.group.num_sessions > 1:  # two sessions could wait for ranks of each other
            self._resync.give_up()
        if not self._hooks and not self._resync.is_given_up and self._called() is not None:
            self._resync.seek()
            self._listen()

    def stand_still(self, *, is_capturing: bool) -> None:
        """Announces slow work that all ranks are about to do, so that they continue together afterwards.

        is_capturing: the work is the training forward that captures, else it ends before the next training forward.
        """
        self._is_capturing = is_capturing
        self._standstill.begin()

    # --- backwards ----------------------------------------------------------------------------------------------------

    def before_forward(self, *_: object) -> None:
        """Applies the layout that the latest sync chose. All ranks do so, whatever became of their sessions."""
        super().before_forward()
        if self._standstill.is_begun and not self._is_capturing and self._is_training():
            self._standstill.end()
        if self.layouts is not None and torch.is_grad_enabled():
            self.layouts.change(self.layouts.wanted)

    def after_forward(self, module: nn.Module, args: object, output: object) -> None:
        if self._is_within and self._standstill.is_begun and self._is_training():
            self._standstill.end()
        super().after_forward(module, args, output)

    def on_backward(self) -> None:
        """Looks for rank 0's reply or syncs with the other ranks, in the backwards in which all ranks do so."""
        if self.layouts is not None:
            self.layouts.note_backward()
        self._num_backwards += 1
        try:
            if self._resync.is_sought:
                self._continue_resync()
            elif self._is_over():
                self._resync.count_from_here()
                self._close()
            elif self.tuner is not None:
                self._sync_when_due(self.tuner)
            else:
                self._look_for_reply()
        except Exception as error:  # a peer or the store is gone; the user's own collectives will report it
            self._give_up(f"the ranks cannot exchange their measurements: {type(error).__name__}: {error}")

    def _is_over(self) -> bool:
        return self.refused is not None or (self.tuner is not None and self.tuner.is_settled)

    def _look_for_reply(self) -> None:
        number = self._num_backwards
        if self._uses_device and (is_looked_at(number) or is_looked_at(number - 1)):
            torch.accelerator.synchronize()  # the host may run ahead of the reductions, which order all this
        reply = self.connection.find_reply(number, is_due=self._is_due)
        if reply is None:
            return
        self.refused = reply.refused
        if self.refused is None:
            self.connection.open()
            self.tuner = self._make_tuner(reply.names)
            if self._left_because is not None:
                self.tuner.leave(self._left_because)
        self._tell()

    def _sync_when_due(self, tuner: GroupTuner) -> None:
        if self._num_quiet > 0:
            self._num_quiet -= 1
            return
        tuner.sync(self.connection.exchange(tuner.take_record()))
        self._num_quiet = tuner.num_quiet_syncs
        if self.layouts is not None:
            self.layouts.want(layout_of(tuner.current))
        if tuner.is_refining and self.cost is None:
            self.cost = self.connection.bucket_cost()  # all ranks measure it in the same backward

    def _continue_resync(self) -> None:
        tuner = self.tuner
        assert tuner is not None  # it has decided
        match self._resync.of_backward():
            case "sync":
                self.connection.open()
                tuner.recheck()
                self._num_quiet = 0
                wanted = self.layouts.wanted if self.layouts is not None else None
                self._sync_when_due(tuner)
                if self.layouts is not None and tuner.is_settled:
                    self.layouts.wanted = wanted  # a rank has lost the decision; it keeps the others' buckets
                self._tell()
            case "over":
                tuner.postpone_recheck()
                self._close()

    def _is_decided(self) -> bool:
        tuner = self.tuner
        return tuner is not None and not tuner.is_over_because and (tuner.is_settled or tuner.is_rechecking)

    def _give_up(self, reason: str) -> None:
        logger.debug("no rank sync", exc_info=True)
        self._resync.give_up()
        if self._is_decided():
            warn_once(("rank_sync", reason), f"{reason}; they train on with their decision")
        else:
            warn_once(("rank_sync", reason), f"{reason}; they train on eagerly")
            self.refused = self.refused or reason
        if self.tuner is not None:
            self.tuner.end(reason)
        self._close()  # peers that wait for this rank in an exchange get an error
        self._tell()

    def _close(self) -> None:
        """Stops listening and disconnects. After a decision, all ranks have ended the backward of the last sync."""
        self._stop_listening()
        self.connection.close()

    def _tell(self) -> None:
        """Calls `on_news`, unless the session left before tuning began."""
        if self._left_because is None:
            self._on_news()

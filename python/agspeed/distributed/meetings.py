# SPDX-License-Identifier: Apache-2.0
"""Meetings: the ranks around one wrapper exchange what happened to their tuners.

`backwards.py` says what a wrapper is. Each rank has a copy of one tuner (runtime/tune/group_tuner.h). The copies stay
equal because all of them get the same records at the same step. The ranks exchange the records at the beginning of a
backward that reduces gradients: it is the one place that all ranks reach in the same step, whatever else they do. The
exchange has a connection of its own, so no collective of the user is ever paired with one of ours.

Before the first meeting, the ranks *greet*:

1. At its first training forward, each rank writes a description of itself to the job's store.
2. At its second backward, rank 0 finds all greetings, because the first backward could not end before every rank's
   forward. If the ranks do not fit together, rank 0 announces that in the store.
3. If they do and tuning is due at rank 0, rank 0 announces that tuning begins with the next backward. It writes before
   its gradients leave, so every rank finds the announcement once its reductions have ended.

Ranks poll the store in a few backwards only (2, 3, 4, 6, 8, 12 ...). A job in which tuning never pays makes a dozen
requests in total.

Training never waits for a greeting. All ranks do slow work (captures, loads) at the same step and continue together
(`standstill.py`). Once the tuners have decided, the hooks and the connection are removed. They return only if all ranks
doubt the decision (`reunion.py`).

Threads: the training thread only, except for the hooks of tensors (`backwards.py`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn

from agspeed.distributed import groups
from agspeed.distributed.backwards import Backwards
from agspeed.distributed.exchange import Exchange
from agspeed.distributed.greetings import Announcement, Greeting, Household, News, is_looked_at, judged
from agspeed.distributed.layouts import BucketCost, Layout, layout_of
from agspeed.distributed.messages import MessageError
from agspeed.distributed.patience import Patience
from agspeed.distributed.reducers import WrapperLayouts, why_left_alone
from agspeed.distributed.reunion import Reunion
from agspeed.distributed.room import room_of
from agspeed.distributed.sharded import Sharding
from agspeed.distributed.standstill import LONGEST_S, Standstill
from agspeed.distributed.step_profile import StepProfile, latest_step
from agspeed.log import logger, warn_once
from agspeed.torch_compat import ddp

_num_sessions: weakref.WeakKeyDictionary[nn.Module | Sharding, int] = weakref.WeakKeyDictionary()
"""How many sessions have greeted within each wrapper; the same number at all ranks."""


class Meetings(Backwards):
    """The meetings of one session under a wrapper (see the module's docstring). Hooks of the wrapper own it."""

    def __init__(
        self,
        wrapper: nn.parallel.DistributedDataParallel | Sharding,
        called: nn.Module,
        greeting: Greeting,
        make_tuner: Callable[[list[str]], Any],
        on_news: Callable[[], None],
    ) -> None:
        """Writes the greeting. All ranks must create this object in their first training forward within the wrapper.

        Args:
            called: see `Backwards`.
            make_tuner: makes this rank's copy of the tuner, a `_native.GroupTuner`, from the names of all ranks.
            on_news: called within a backward when tuning begins or is refused, and when meetings resume or fail.
        """
        super().__init__(wrapper, called)
        self.tuner: Any = None
        """This rank's copy of the tuner; None until tuning begins."""
        self.refused: str | None = None
        """Why the ranks do not tune, as a sentence; None unless they refused."""
        self.household: Household | None = None
        """This rank's host group; None until tuning begins, and if no other rank shares its host and cache."""
        self.cost: BucketCost | None = None
        """The cost of a reduction among these ranks; None until the tuners are about to decide."""
        _num_sessions[wrapper] = _num_sessions.get(wrapper, 0) + 1
        self.patience = Patience(self._group, LONGEST_S)
        self._rank = distributed.get_rank(self._group)
        self._size = distributed.get_world_size(self._group)
        self._make_tuner, self._on_news = make_tuner, on_news
        is_left_alone = isinstance(wrapper, Sharding) or why_left_alone(wrapper) is not None
        self.layouts = None if is_left_alone else WrapperLayouts(wrapper)  # type: ignore[arg-type]
        """The wrapper's layouts; None if they must not change."""
        self.layout = ""
        """The name of the layout in the latest reducing backward; "" for the user's own."""
        self._wanted_layout: Layout | None = None
        self._greeting = greeting
        self._names: list[str] = []
        self._greetings: list[Greeting | None] = []
        self._room, self._name = room_of(self._group, "meetings")
        self._news = News(self._room, self._size)
        self._standstill, self._is_capturing = Standstill(self._room, self._rank, self._size), False
        self._reunion = Reunion(self._room, self._rank, self._size, self.num_collectives)
        self._exchange: Exchange | None = None
        self._num_exchanges = 0
        self._is_due = False
        self._num_backwards = self._num_quiet = 0
        self._uses_device = any(parameter.device.type != "cpu" for parameter in wrapper.parameters())
        self._room.put(f"greeting/{self._rank}", greeting.to_json())
        self._listen()

    @property
    def num_ranks(self) -> int:
        return self._size

    @property
    def keeps_order(self) -> bool:
        """Whether a gradient's sum has the same bits with every bucket layout."""
        return self._size == 2 or groups.backend_of(self._group) == "agspeed"

    def why_replaced(self) -> str | None:
        """Why the ranks will not meet here again, as a sentence, or None. Call it while the module is being called."""
        active = ddp.active()
        if active is None or active is self._wrapper():
            return None
        return "its DistributedDataParallel was replaced while the ranks tuned: restore and optimize it to tune anew"

    def may_begin(self, is_due: bool) -> bool:
        """Whether tuning has begun at all ranks; it begins once it is due at rank 0. is_due: whether it is due here."""
        self._is_due = is_due
        return self.tuner is not None and self.refused is None

    def leave(self, reason: str) -> None:
        """Ends tuning at this rank. The next meeting passes the reason to the other ranks."""
        if self.tuner is not None:
            self.tuner.leave(reason)
        elif self.refused is None:
            self._make_tuner, self._on_news = _leaving(self._make_tuner, reason), _nothing

    def meet_again(self) -> None:
        """Seeks new meetings, because this rank doubts the decision. Meetings resume once all ranks doubt it.

        Call it between two steps, as often as wanted while the doubt lasts.
        """
        called, wrapper = self._called(), self._wrapper()
        if wrapper is None or _num_sessions[wrapper] > 1:  # two sessions could wait for ranks of each other
            self._reunion.give_up()
        if not self._hooks and not self._reunion.is_given_up and called is not None:
            self._reunion.seek()
            self._listen()

    def stand_still(self, *, is_capturing: bool) -> None:
        """Announces slow work that all ranks are about to do, so that they continue together afterwards.

        is_capturing: the work is the training forward that captures, else it ends before the next training forward.
        """
        self._is_capturing = is_capturing
        self._standstill.begin()

    # --- backwards ----------------------------------------------------------------------------------------------------

    def before_forward(self, *_: Any) -> None:
        """Applies the layout that the latest meeting chose. All ranks do so, whatever became of their sessions."""
        super().before_forward()
        if self._standstill.is_begun and not self._is_capturing and self._is_training():
            self._standstill.end()
        if self.layouts is not None and torch.is_grad_enabled():
            self.layouts.change(self._wanted_layout)

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._is_within and self._standstill.is_begun and self._is_training():
            self._standstill.end()
        super().after_forward(module, args, output)

    def on_backward(self) -> None:
        """Greets or meets the other ranks if this backward is one in which they do."""
        if self.layouts is not None and self.layouts.current is not None:
            self.layout = self.layouts.current.name
        else:
            self.layout = ""
        self._num_backwards += 1
        try:
            if self._reunion.is_sought:
                self._reunite()
            elif self._is_over():
                self._reunion.count_from_here()
                self._close()
            elif self.tuner is not None:
                self._meet_when_asked()
            else:
                self._greet()
        except Exception as error:  # a peer or the store is gone; the user's own collectives will report it
            self._give_up(f"the ranks cannot exchange what they measure: {type(error).__name__}: {error}")

    def _is_over(self) -> bool:
        return self.refused is not None or (self.tuner is not None and self.tuner.is_settled)

    def _reunite(self) -> None:
        match self._reunion.of_backward():
            case "meet":
                self._connect()
                self.tuner.recheck()
                self._num_quiet, layout = 0, self._wanted_layout
                self._meet_when_asked()
                if self.tuner.is_settled:  # a rank has lost the decision; it keeps training in the others' buckets
                    self._wanted_layout = layout
                self._on_news()
            case "over":
                self.tuner.postpone_recheck()
                self._close()

    def _is_decided(self) -> bool:
        tuner = self.tuner
        return tuner is not None and not tuner.is_over_because and (tuner.is_settled or tuner.is_rechecking)

    def _give_up(self, reason: str) -> None:
        logger.debug("no meetings", exc_info=True)
        self._reunion.give_up()
        if self._is_decided():
            warn_once(("meetings", reason), f"{reason}; they train on with what they decided")
        else:
            warn_once(("meetings", reason), f"{reason}; they train on eagerly")
            self.refused = self.refused or reason
        if self.tuner is not None:
            self.tuner.end(reason)
        self._close()  # peers that wait for this rank in an exchange get an error
        self._on_news()

    def _close(self) -> None:
        """Stops listening and disconnects. After a decision, all ranks have ended the backward of the last meeting."""
        self._stop_listening()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            with contextlib.suppress(Exception):  # peers may be gone; the user's backward must not fail for that
                exchange.close()

    # --- greeting -----------------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        number = self._num_backwards
        if self._uses_device and (is_looked_at(number) or is_looked_at(number - 1)):
            torch.accelerator.synchronize()  # the host may run ahead of the reductions, which order all this
        if (news := self._news.of_backward(number)) is not None:
            self._accept(news)
            self._on_news()
        elif self._rank == 0 and is_looked_at(number):
            self._lead()

    def _accept(self, news: Announcement) -> None:
        self._names, self.refused = news.names, news.refused
        if self.refused is not None:
            return
        if news.nonces[self._rank] != self._greeting.nonce:
            raise MessageError("the news in the job's store is of an earlier job: somebody has written it there again")
        self._room.bind(news.token)
        self.household = Household.of(self._rank, news.token, news.homes)
        self._begin()

    def _lead(self) -> None:
        refused = None
        if not self._names:
            try:
                self._greetings = [self._room.find(f"greeting/{rank}", Greeting.parse) for rank in range(self._size)]
            except MessageError as error:
                self._greetings, refused = [None] * self._size, str(error)
            self._names, why_not = judged(self._greetings)
            refused = refused or why_not
        if refused is not None or self._is_due:
            news = Announcement.made(self._num_backwards + 1, self._greetings, self._names, refused)
            self._news.announce(news)

    def _begin(self) -> None:
        self._connect()
        self.tuner = self._make_tuner(self._names)

    def _connect(self) -> None:
        """Opens the connection for the records. All ranks do so in the same backward."""
        self._num_exchanges += 1
        self._exchange = Exchange(self._group, self._room, f"{self._name}, {self._num_exchanges}")

    def latest_step(self) -> StepProfile | None:
        """When the buckets of the latest timed step were full and reduced; None if no step was timed."""
        wrapper = self._wrapper()
        return latest_step(wrapper) if isinstance(wrapper, nn.parallel.DistributedDataParallel) else None

    # --- meetings -----------------------------------------------------------------------------------------------------

    def _meet_when_asked(self) -> None:
        if self._num_quiet > 0:
            self._num_quiet -= 1
            return
        assert self._exchange is not None  # `_connect` made it, or raised
        self.tuner.meet(self._exchange.of_records(self.tuner.take_record()))
        self._num_quiet = self.tuner.num_quiet_meetings
        wanted = layout_of(self.tuner.current)
        self._wanted_layout = Layout.parse(wanted) if wanted else None
        if self.tuner.is_refining and self.cost is None:
            self.cost = self._exchange.bucket_cost()  # all ranks measure it in the same backward


def _nothing() -> None:
    pass


def _leaving(make_tuner: Callable[[list[str]], Any], reason: str) -> Callable[[list[str]], Any]:
    """Makes a tuner that only reports, in the first meeting, that its rank has left."""

    def make(names: list[str]) -> Any:
        tuner = make_tuner(names)
        tuner.leave(reason)
        return tuner

    return make

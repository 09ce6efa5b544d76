# SPDX-License-Identifier: Apache-2.0
"""Meetings: when and how the ranks around one wrapper (DistributedDataParallel, what `replicate()` leaves, the units of
`fully_shard`) tell each other what happened to their tuners.

Each rank has a copy of one tuner (runtime/tune/group_tuner.h). Copies stay equal if all are told the same things at the
same step, and the one place that all ranks reach in the same step, whatever else they do, is the beginning of a
backward that reduces gradients (`backwards.py`). There the ranks exchange their records, over a process group of their
own, so that no collective of the user's is ever paired with one of ours.

Before that they *greet*: each says in the job's store, at its first training forward, what it is. At its second
backward rank 0 has all greetings, for the first one could not end without every rank's forward. It writes there whether
the ranks fit together, and once tuning is due, that it begins with the next backward: written before its gradients
leave, and so to be found by everybody whose reductions have come to their end. Both are looked for at few backwards
(2, 3, 4, 6, 8, 12 ...): a job in which tuning never pays asks the store a dozen times, all in all.

Training never waits for a greeting. What takes seconds (captures, loads) all ranks do at the same step, and go on
together (`standstill.py`). Once the tuners have decided nothing of this is left, until all ranks doubt the decision
(`reunion.py`). Training thread only, but for the hooks, which run where the backward does, while that thread waits for
it.
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
"""By wrapper, how many have greeted within it: as many at all ranks."""


class Meetings(Backwards):
    """See the module's text. One for each session under a wrapper; it lives in hooks of the wrapper."""

    def __init__(
        self,
        wrapper: nn.parallel.DistributedDataParallel | Sharding,
        called: nn.Module,
        greeting: Greeting,
        make_tuner: Callable[[list[str]], Any],
        on_news: Callable[[], None],
    ) -> None:
        """Says the greeting. All ranks have to come here in their first training forward within the wrapper.

        Args:
            called: see `Backwards`.
            make_tuner: makes this rank's copy of the tuner, a `_native.GroupTuner`, from the names of all ranks.
            on_news: called within a backward once tuning begins, or is refused.
        """
        super().__init__(wrapper, called)
        self.tuner: Any = None
        """This rank's copy; None until tuning begins."""
        self.refused: str | None = None
        """Why the ranks do not tune, as a sentence."""
        self.household: Household | None = None
        """This rank's, once tuning begins; None where it has its host or its cache for itself."""
        self.cost: BucketCost | None = None
        """Of a reduction among these ranks; known once the tuners are about to decide."""
        _num_sessions[wrapper] = _num_sessions.get(wrapper, 0) + 1
        self.patience = Patience(self._group, LONGEST_S)
        self._rank = distributed.get_rank(self._group)
        self._size = distributed.get_world_size(self._group)
        self._make_tuner, self._on_news = make_tuner, on_news
        is_left_alone = isinstance(wrapper, Sharding) or why_left_alone(wrapper) is not None
        self.layouts = None if is_left_alone else WrapperLayouts(wrapper)  # type: ignore[arg-type]
        """The wrapper's; None where they are to be left alone."""
        self.layout = ""
        """The name of the one that the latest reducing backward had; "" for the user's own."""
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
        """Whether a gradient's sum has the same bits in whatever bucket it is reduced."""
        return self._size == 2 or groups.backend_of(self._group) == "agspeed"

    def why_replaced(self) -> str | None:
        """Asked while the module is called: why its ranks will not meet here again, as a sentence, or None."""
        active = ddp.active()
        if active is None or active is self._wrapper():
            return None
        return "its DistributedDataParallel was replaced while the ranks tuned: restore and optimize it to tune anew"

    def may_begin(self, is_due: bool) -> bool:
        """Whether tuning has begun at all ranks, which it does once it is due at rank 0. is_due: at this one."""
        self._is_due = is_due
        return self.tuner is not None and self.refused is None

    def leave(self, reason: str) -> None:
        """This rank tunes no longer; the others are told in the next meeting."""
        if self.tuner is not None:
            self.tuner.leave(reason)
        elif self.refused is None:
            self._make_tuner, self._on_news = _leaving(self._make_tuner, reason), _nothing

    def meet_again(self) -> None:
        """This rank doubts what was decided: between two steps, again and again. Meetings go on once all ranks do."""
        called, wrapper = self._called(), self._wrapper()
        if wrapper is None or _num_sessions[wrapper] > 1:  # each would wait for the other one's ranks
            self._reunion.give_up()
        if not self._hooks and not self._reunion.is_given_up and called is not None:
            self._reunion.seek()
            self._listen()

    def stand_still(self, *, is_capturing: bool) -> None:
        """All ranks are about to do what takes its time: the training forward that captures, or something before it.
        They go on together.
        """
        self._is_capturing = is_capturing
        self._standstill.begin()

    # --- backwards ----------------------------------------------------------------------------------------------------

    def before_forward(self, *_: Any) -> None:
        """All ranks put the layout in place that the latest meeting asked for, whatever became of their sessions."""
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
        """Greets or meets the other ranks, once there is something to say."""
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
        except Exception as error:  # a peer is gone, or the store: the user's own collectives will say so
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
                if self.tuner.is_settled:  # a rank has lost what was decided, and runs on in the others' buckets
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
        self._close()  # peers that wait here for this rank learn that it does not come
        self._on_news()

    def _close(self) -> None:
        """All ranks have had the last meeting, as they have ended the backward that it was in."""
        self._stop_listening()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            with contextlib.suppress(Exception):  # its peers may be gone; the user's backward is not to know of it
                exchange.close()

    # --- greeting -----------------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        number = self._num_backwards
        if self._uses_device and (is_looked_at(number) or is_looked_at(number - 1)):
            torch.accelerator.synchronize()  # the host may be ahead of the reductions that order all this
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
        """All ranks do it in the same backward."""
        self._num_exchanges += 1
        self._exchange = Exchange(self._group, self._room, f"{self._name}, {self._num_exchanges}")

    def latest_step(self) -> StepProfile | None:
        """When the buckets of the latest timed step were full and reduced; None where nobody timed one."""
        wrapper = self._wrapper()
        return latest_step(wrapper) if isinstance(wrapper, nn.parallel.DistributedDataParallel) else None

    # --- meetings -----------------------------------------------------------------------------------------------------

    def _meet_when_asked(self) -> None:
        if self._num_quiet > 0:
            self._num_quiet -= 1
            return
        assert self._exchange is not None  # its maker raises otherwise, and nobody meets
        self.tuner.meet(self._exchange.of_records(self.tuner.take_record()))
        self._num_quiet = self.tuner.num_quiet_meetings
        wanted = layout_of(self.tuner.current)
        self._wanted_layout = Layout.parse(wanted) if wanted else None
        if self.tuner.is_refining and self.cost is None:
            self.cost = self._exchange.bucket_cost()  # all ranks are at it


def _nothing() -> None:
    pass


def _leaving(make_tuner: Callable[[list[str]], Any], reason: str) -> Callable[[list[str]], Any]:
    """A tuner that only tells, in the first meeting, that its rank left before."""

    def make(names: list[str]) -> Any:
        tuner = make_tuner(names)
        tuner.leave(reason)
        return tuner

    return make

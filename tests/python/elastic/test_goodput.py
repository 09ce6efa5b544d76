# SPDX-License-Identifier: Apache-2.0
"""elastic.Goodput: what it counts in a series of changes, and the sentence about it."""

from __future__ import annotations

import time

from agspeed.elastic import Goodput


def test_a_job_without_a_change_has_lost_nothing() -> None:
    goodput = Goodput()
    goodput.note_epoch(1, 0)
    goodput.note_first_step()
    assert goodput == Goodput(num_epochs=1) and goodput.sentence(1) == "1 step in 1 epoch; no step interrupted"


def test_a_change_lasts_from_its_first_notice_to_the_first_step() -> None:
    goodput = Goodput()
    goodput.note_change(time.monotonic() - 100)
    goodput.note_epoch(2, 1)
    goodput.note_change(time.monotonic())  # the epoch fails before its first step
    goodput.note_epoch(3, 1)
    goodput.note_first_step()
    goodput.note_first_step()
    (seconds,) = goodput.change_seconds
    assert seconds >= 100 and goodput.num_lost == 2 and goodput.num_epochs == 3


def test_a_state_that_is_newer_than_the_own_one_costs_no_step() -> None:
    goodput = Goodput()
    goodput.note_epoch(2, -1)
    assert goodput.num_lost == 0


def test_the_sentence_has_all_counters() -> None:
    goodput = Goodput(num_epochs=3)
    goodput.take_over(1, [0.41, 1.2])
    assert goodput.sentence(80) == "80 steps in 3 epochs; 1 interrupted step made again; changes took 0.4 s, 1.2 s"

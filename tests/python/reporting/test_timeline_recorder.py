# SPDX-License-Identifier: Apache-2.0
"""Step times in bounded memory: nothing is lost from the sums, phases stay in order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agspeed.reporting import model
from agspeed.reporting.timeline import TimelineRecorder


@given(times=st.lists(st.floats(0.001, 1e4), min_size=1, max_size=300), capacity=st.sampled_from([2, 8, 64]))
@settings(max_examples=60)
def test_buckets_keep_the_mean_and_the_slowest(times, capacity):
    recorder = TimelineRecorder(capacity)
    for time in times:
        recorder.add(time, wait_ms=time / 2)
    found = recorder.to_json()
    width = found["steps_per_point"]
    counts = [min(width, len(times) - step) for step in found["step"]]
    assert sum(counts) == found["steps"] == len(times) == recorder.steps
    assert len(found["step"]) <= capacity
    assert max(found["max_ms"]) == pytest.approx(max(times), abs=1e-4)
    total = sum(ms * count for ms, count in zip(found["ms"], counts, strict=True))
    assert total == pytest.approx(sum(times), rel=1e-3, abs=1e-3 * len(times))


def test_phases_are_runs_of_equal_activity():
    recorder = TimelineRecorder()
    for kind, candidate, steps in (
        ("eager", None, 3),
        ("trial", "native", 4),
        ("trial", "aot", 2),
        ("steady", "aot", 1),
    ):
        for _ in range(steps):
            recorder.add(1.0, phase=kind, candidate=candidate)
    assert [tuple(phase.values()) for phase in recorder.to_json()["phases"]] == [
        ("eager", 0, 2, None),
        ("trial", 3, 6, "native"),
        ("trial", 7, 8, "aot"),
        ("steady", 9, 9, "aot"),
    ]


def test_phases_are_bounded_and_cover_every_step():
    recorder = TimelineRecorder(64)
    for step in range(2000):
        recorder.add(1.0, phase="trial", candidate=str(step))
    phases = recorder.to_json()["phases"]
    assert len(phases) <= 256
    assert phases[0]["first_step"] == 0 and phases[-1]["last_step"] == 1999
    for left, right in itertools.pairwise(phases):
        assert right["first_step"] == left["last_step"] + 1


def test_result_is_valid_in_a_report():
    recorder = TimelineRecorder()
    recorder.add(1.25, wait_ms=0.5, phase="capture")
    data = model.empty_report() | {"timeline": recorder.to_json()}
    model.validate(data)


def test_odd_capacity_is_refused():
    with pytest.raises(ValueError, match="even number"):
        TimelineRecorder(7)


def test_pauses_lie_where_training_stood_still_and_steps_between_them():
    now = [10.0]
    recorder = TimelineRecorder(clock=lambda: now[0])
    for kind, candidate, paused in (("capture", None, 2.0), ("compile", "native", 3.0), ("compile", "native", 4.0)):
        now[0] += paused
        recorder.pause(kind, paused, candidate)
    now[0] += 0.5
    recorder.add(500.0)
    found = recorder.to_json()
    assert [(p["kind"], p["candidate"], p["at_s"], p["seconds"]) for p in found["pauses"]] == [
        ("capture", None, 0.0, 2.0),
        ("compile", "native", 2.0, 7.0),
    ]
    assert found["at_s"] == [9.0]


def test_pauses_are_bounded_and_the_longest_stay():
    now = [0.0]
    recorder = TimelineRecorder(clock=lambda: now[0])
    for number in range(1, 1001):
        now[0] += number + 1
        recorder.pause("compile", float(number), str(number))
    seconds = [pause["seconds"] for pause in recorder.to_json()["pauses"]]
    assert len(seconds) <= 256 and max(seconds) == 1000 and min(seconds) > 700


def test_a_pause_too_short_to_notice_is_none():
    recorder = TimelineRecorder()
    recorder.pause("gate", 0.0005)
    assert recorder.to_json()["pauses"] == []

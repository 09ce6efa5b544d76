# SPDX-License-Identifier: Apache-2.0
"""The likely cause of a hang, from what the ranks say."""

from __future__ import annotations

import json
from typing import Any

from agspeed.inspection import model
from agspeed.inspection.causes import Job, causes
from agspeed.inspection.points import Answer, Point
from agspeed.inspection.processes import Process
from agspeed.inspection.text import lines
from tests.python.inspection.fake_points import document, group, operation


def _job(*documents: dict[str, Any] | None, states: str = "", size: int = 2) -> Job:
    """Makes a job of what its ranks say; None: the rank does not answer. `states` has a letter for each rank."""
    answers, processes = {}, {}
    for rank, said in enumerate(documents):
        point = Point("@name", "0a1b2c3d", rank, size, 4711 + rank, 0)
        parsed = None if said is None else model.parsed(json.dumps(said).encode())
        answers[rank] = Answer(point, parsed, "" if parsed else "did not answer within 2 s")
        processes[rank] = Process(4711 + rank, 0, (states or "S" * size)[rank], "", "python train.py")
    return Job("0a1b2c3d", size, answers, processes)


def _in_flight(rank: int, *waits_for: int, **changes: Any) -> dict[str, Any]:
    return document(rank, groups=[group(operations=[operation(*waits_for)])], **changes)


def test_a_rank_that_has_not_started_an_operation() -> None:
    late = document(1, groups=[group(calls=6)], stack=["train.py:31 in evaluate", "train.py:80 in main"])
    [cause] = causes(_job(_in_flight(0, 1), late))
    assert cause == (
        "Rank 1 has not started operation 7, all_reduce(4 x f32, sum) of group 'world', and rank 0 has waited for it "
        "for 12.5 s. It has no operation in flight: its main thread sleeps at train.py:31 in evaluate."
    )


def test_the_last_rank_of_a_chain_is_named() -> None:
    ranks = [0, 1, 2]
    first = document(0, 3, groups=[group(ranks=ranks, operations=[operation(1, 2)])])
    other = group("pair", ranks=[1, 2], calls=3, operations=[operation(2, sequence=3)])
    second = document(1, 3, groups=[group(ranks=ranks, calls=6), other])
    third = document(2, 3, groups=[group(ranks=ranks, calls=6), group("pair", ranks=[1, 2], calls=2)])
    [cause] = causes(_job(first, second, third, size=3))
    assert cause.startswith("Rank 2 has not started operation")
    assert "and rank 0 has waited for it" in cause


def test_a_rank_in_its_data_loader() -> None:
    stack = [
        "data.py:9 in __getitem__",
        "/venv/torch/utils/data/_utils/fetch.py:54 in fetch",
        "train.py:20 in <module>",
    ]
    [cause] = causes(_job(_in_flight(0, 1), document(1, groups=[group(calls=6)], stack=stack)))
    assert "It is in its data loader: its main thread sleeps at data.py:9 in __getitem__." in cause


def test_a_stopped_process() -> None:
    [cause] = causes(_job(_in_flight(0, 1), None, states="ST"))
    assert cause == "Rank 1 is stopped (process 4712): `kill -CONT 4712` continues it."


def test_a_process_that_does_not_answer() -> None:
    [cause] = causes(_job(_in_flight(0, 1), None))
    assert "Its process 4712 did not answer within 2 s." in cause


def test_a_rank_of_another_host() -> None:
    [cause] = causes(_job(_in_flight(0, 1)))
    assert "It has no process on this host: it runs on another host, or it has ended." in cause


def test_groups_in_different_orders() -> None:
    def rank(number: int, own: str, other: str) -> dict[str, Any]:
        groups = [group(own, operations=[operation(1 - number)]), group(other, calls=6)]
        return document(number, groups=groups)

    [cause] = causes(_job(rank(0, "left", "right"), rank(1, "right", "left")))
    assert cause == (
        "The ranks start their operations in different orders: rank 0 is in operation 7, all_reduce(4 x f32, sum) of "
        "group 'left' and waits for rank 1; rank 1 is in operation 7, all_reduce(4 x f32, sum) of group 'right' and "
        "waits for rank 0."
    )


def _named(number: int, own: str, *waits_for: int, size: int = 2, **changes: Any) -> dict[str, Any]:
    flying = operation(*waits_for, sequence=None, call="allreduce([4] x f32)", name=own, bytes=0)
    below = group(calls=3)  # the group that moves the data has the same name
    return document(number, size, groups=[below, group(is_named=True, operations=[flying], **changes)])


def test_names_in_different_orders() -> None:
    missing = operation(0, sequence=None, call="", name="b")
    [cause] = causes(_job(_named(0, "a", 1, not_started=[missing]), _named(1, "b", 0)))
    assert "different orders: rank 0 is in 'a' of group 'world' and waits for rank 1; rank 1 is in 'b'" in cause


def test_a_name_that_a_rank_has_not_started() -> None:
    missing = operation(0, 1, sequence=None, name="a", call="")
    coordinator = document(0, 3, groups=[group(is_named=True, not_started=[missing])])
    idle = document(1, 3, groups=[group(is_named=True)])
    found = causes(_job(coordinator, idle, _named(2, "a", 0, size=3), size=3))
    assert len(found) == 2 and all("has not started 'a' of group 'world'" in cause for cause in found)


def test_other_calls_under_one_number() -> None:
    longer = operation(0, call="all_reduce(8 x f32, sum)")
    [cause] = causes(_job(_in_flight(0, 1), document(1, groups=[group(operations=[longer])])))
    assert cause == (
        "Rank 1 calls all_reduce(8 x f32, sum) as operation 7 of group 'world', and rank 0 calls "
        "all_reduce(4 x f32, sum): all ranks must make the same calls."
    )


def test_a_group_that_has_ended() -> None:
    ended = document(0, groups=[group(failure="rank 1 called something else")])
    assert causes(_job(ended, document(1))) == ["Group 'world' has ended: rank 1 called something else."]


def test_rails_that_lead_nowhere() -> None:
    peer = {
        "rank": 1,
        "silent_s": 3.0,
        "shared_memory": False,
        "rails": [{"is_up": False, "bytes_in_flight": 0}],
        "frames_to_resend": 2,
        "unreached_s": 2.5,
        "failure": "no route to host",
        "is_lost": False,
    }
    [cause] = causes(_job(_in_flight(0, 1, peers=[peer]), _in_flight(1, 0)))
    assert cause == "No rail has led from rank 0 to rank 1 for 2.5 s: no route to host."


def test_messages_of_which_one_end_is_missing() -> None:
    receive = operation(1, sequence=None, call="receive from rank 1 (8 bytes, tag 3)")
    waiting = document(0, groups=[group(operations=[receive])])
    [cause] = causes(_job(waiting, document(1, groups=[group()])))
    assert cause.startswith("Rank 1 has not started receive from rank 1 (8 bytes, tag 3) of group 'world'")


def test_ranks_that_have_not_joined() -> None:
    joining = document(0, state="joining", job="", seconds=7.0)
    [cause] = causes(_job(joining))
    assert cause.startswith("Rank 1 of 2 has not joined the job for 7.0 s, and no process of this host is that rank")


def test_a_transfer_in_progress() -> None:
    [cause] = causes(_job(_in_flight(0, 1), _in_flight(1, 0)))
    assert "All ranks that answered are in operation 7" in cause and "has moved 16 B of 32 B" in cause


def test_a_busy_engine() -> None:
    [cause] = causes(_job(document(0, state="busy"), document(1)))
    assert cause.startswith("The engine of rank 0 has not answered for a second")


def test_lines_name_ranks_processes_operations_and_rails() -> None:
    rail = {
        "interface": "eth0",
        "address": "10.0.0.5",
        "is_link_up": True,
        "bytes_per_second": 1.25e8,
        "bytes_sent": 2048,
        "bytes_received": 1024,
        "failovers": 1,
        "stalls": 0,
    }
    peer = {"rank": 1, "silent_s": 0.0, "shared_memory": False, "rails": [{"is_up": True, "bytes_in_flight": 16}]}
    last = {"group": "world", "call": "all_reduce", "sequence": 6, "seconds": 13.0}
    waiting = _in_flight(0, 1, peers=[peer], rails=[rail])
    found = list(lines(_job(waiting, document(1, groups=[group(calls=6)], last_finished=last))))
    assert found[0] == "Job 0a1b2c3d: 2 of 2 ranks are on this host."
    call = "all_reduce(4 x f32, sum)"
    assert found[1:5] == [
        "rank 0, process 4711, sleeps: python train.py",
        f"  group 'world', operation 7, {call}: in flight for 12.5 s; waits for rank 1; 16 B of 32 B moved",
        "  to rank 1: eth0 up, 16 B in flight",
        "  rail eth0 10.0.0.5: 1,000 Mbit/s, 2.0 KiB sent, 1.0 KiB received, 1 failover, 0 stalls",
    ]
    assert "  It has no operation in flight; all_reduce of group 'world' ended 13.0 s ago." in found
    assert found[-1].startswith("Likely cause: Rank 1 has not started operation 7")


def test_ranks_outside_of_agspeed() -> None:
    found = list(lines(_job(document(0), document(1))))
    assert found[-1] == "No rank has an operation in flight: the ranks are outside of agspeed."

# SPDX-License-Identifier: Apache-2.0
"""The backend's features beyond collectives: any-source receives, barriers with names, flight records and counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed import native
from agspeed.distributed import metrics, trace
from agspeed.errors import UserError
from tests.python.distributed import tools
from tests.python.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    # Over rails, whose traffic is counted.
    with Ranks(request.param, AGSPEED_SHARED_MEMORY="0", AGSPEED_WIRE_CODING="off") as started:
        yield started


# --- receives from any source -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 100_000])
def test_messages_are_received_from_any_rank(ranks: Ranks, tmp_path: Path, count: int) -> None:
    found = ranks.run(tools.received_from_any_rank, tmp_path, count=count, rounds=3)[0]
    for source in range(1, ranks.size):
        own = [value for sender, value in found if sender == source]
        assert own == [100.0 * source, 100.0 * source + 1, 100.0 * source + 2]
    assert len(found) == 3 * (ranks.size - 1)


def test_receives_from_any_rank_go_beside_others(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(tools.received_beside_known_sources, tmp_path)[0] == [1.0, 2.0, 3.0]


def test_a_receive_without_a_send_ends_at_its_deadline(ranks: Ranks, tmp_path: Path) -> None:
    message = ranks.run(tools.receive_without_send, tmp_path)[0]
    assert "DistBackendError" in message
    assert "receive from any rank (8 bytes, tag 0)" in message and "0.50 s" in message


def test_a_wait_that_takes_too_long_says_so(ranks: Ranks, tmp_path: Path) -> None:
    message = ranks.run(tools.short_wait, tmp_path)[0]
    assert "DistBackendError" in message and "timed out after 200 ms" in message


# --- barriers that name missing ranks ---------------------------------------------------------------------------------


def test_a_barrier_that_all_ranks_reach(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(tools.barriers_of_all_ranks, tmp_path, times=5) == [5] * ranks.size


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_a_barrier_names_missing_ranks_and_leaves_the_group_usable(
    ranks: Ranks, tmp_path: Path, wait_all_ranks: bool
) -> None:
    late = [1] if ranks.size == 2 else [1, 3]
    named = "Ranks 1, 3" if wait_all_ranks and ranks.size > 2 else "Rank 1"
    found = ranks.run(tools.late_ranks_at_a_barrier, tmp_path, late=late, wait_all_ranks=wait_all_ranks)
    for rank, (message, total) in enumerate(found):
        assert f"DistBackendError: [Rank {rank}]: Rank " in message and " timed out in monitoredBarrier: " in message
        assert f"{named} failed to pass monitoredBarrier in 1000 ms" in message
        assert total == ranks.size


def test_a_barrier_of_no_time_ends_at_once(ranks: Ranks, tmp_path: Path) -> None:
    message = ranks.run(tools.barrier_without_time, tmp_path)[0]
    assert "Rank 0 timed out in monitoredBarrier: Rank 1 failed to pass monitoredBarrier in 0 ms" in message


def test_barriers_of_subgroups_are_apart(ranks: Ranks, tmp_path: Path) -> None:
    for message in ranks.run(tools.barriers_of_subgroups, tmp_path)[:-1]:
        assert f"Rank {ranks.size - 1} failed" in message


# --- flight records ---------------------------------------------------------------------------------------------------


def test_a_record_says_what_each_group_did(ranks: Ranks, tmp_path: Path) -> None:
    for rank, (record, seconds) in enumerate(ranks.run(tools.recorded, tmp_path, count=1000)):
        assert (record["kind"], record["rank"], record["world_size"]) == ("agspeed.flight_record", rank, ranks.size)
        whole = record["groups"][0]
        assert whole["ranks"] == list(range(ranks.size))
        first, second = whole["operations"][:2]
        assert (first["operation"], first["dtype"]) == ("all_reduce", "bf16")
        assert first["input_sizes"] == first["output_sizes"] == [1000]
        assert (second["operation"], second["dtype"], second["input_sizes"]) == ("all_gather", "i64", [4])
        assert second["output_sizes"] == [4] * ranks.size
        assert [each["sequence"] for each in whole["operations"]] == sorted(
            each["sequence"] for each in whole["operations"]
        )
        assert all(each["state"] == "done" and 0 <= each["seconds"] < seconds for each in whole["operations"])
        messages = [each for each in whole["operations"] if each["operation"] in ("send", "receive")]
        if rank < 2:
            [message] = messages
            assert (message["operation"], message["peer"], message["tag"]) == (("send", "receive")[rank], 1 - rank, 3)
            [broadcast] = record["groups"][1]["operations"]
            assert (broadcast["operation"], broadcast["root"]) == ("broadcast", 0)
        else:
            assert not messages and len(record["groups"]) == 1


def test_a_record_keeps_the_last_operations(ranks: Ranks, tmp_path: Path) -> None:
    for record in ranks.run(tools.recorded_often, tmp_path, times=600):
        [group] = record["groups"]
        assert len(group["operations"]) == 512 and group["operations_before"] == 88
        assert [each["sequence"] for each in group["operations"]] == list(range(89, 601))


def test_a_failure_writes_the_record(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    with Ranks(2, AGSPEED_FLIGHT_RECORD_DIR=str(folder)) as ranks:
        asked = ranks.run(tools.recorded_failure, tmp_path)
    for rank, record in enumerate(asked):
        written = json.loads((folder / f"flight-record-rank{rank}.json").read_text())
        for document in (record, written):
            done, failed = document["groups"][0]["operations"]
            assert (done["state"], failed["state"]) == ("done", "failed")
            assert failed["input_sizes"] == [8 + rank] and "9 x f32" in failed["error"]
        assert "9 x f32" in written["reason"]


def test_an_end_without_a_failure_writes_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    with Ranks(2, AGSPEED_FLIGHT_RECORD_DIR=str(folder)) as ranks:
        ranks.run(tools.received_nothing, tmp_path)
    assert not list(folder.iterdir())


# --- counters ---------------------------------------------------------------------------------------------------------


def test_counters_count_bytes_and_operations(ranks: Ranks, tmp_path: Path) -> None:
    count = 300_000
    for before, after, text in ranks.run(tools.counted, tmp_path, count=count):
        [earlier], [rail] = before["rails"], after["rails"]
        expected = (
            2 * 4 * count * (ranks.size - 1) / ranks.size
        )  # the direct algorithm: each share is sent twice, in chunks that may be unequal
        assert 0.99 * expected <= rail["bytes_sent"] - earlier["bytes_sent"] < 1.1 * expected + 65536
        assert 0.99 * expected <= rail["bytes_received"] - earlier["bytes_received"] < 1.1 * expected + 65536
        assert (rail["interface"], rail["address"], rail["share"]) == ("lo", "127.0.0.1", 1.0)
        assert rail["stalls"] <= rail["failovers"] and after["connections_refused"] == 0
        assert after["shared_memory_bytes_sent"] == 0
        operations = {row["operation"]: row for row in after["operations"]}
        reduced = operations["all_reduce"]
        assert (reduced["started"], reduced["ended"], reduced["failed"]) == (1, 1, 0)
        assert reduced["bytes"] == 4 * count and reduced["seconds"] > 0
        assert operations["barrier"]["started"] == 2
        assert (
            f'agspeed_comm_operation_bytes_total{{rank="{after["rank"]}",operation="all_reduce"}} {4 * count}' in text
        )


def test_a_timeline_shows_rails_and_operations(ranks: Ranks, tmp_path: Path) -> None:
    count = 200_000
    for rank, document in enumerate(ranks.run(tools.traced, tmp_path, folder=tmp_path, count=count)):
        events = document["traceEvents"]
        assert {event["pid"] for event in events} == {rank}
        begun = {event["id"]: event for event in events if event["ph"] == "b"}
        ended = {event["id"]: event for event in events if event["ph"] == "e"}
        assert len(begun) == 5 and begun.keys() == ended.keys()
        for key, event in begun.items():
            assert event["name"] == f"all_reduce {count} x f32" and event["args"]["state"] == "done"
            assert event["ts"] <= ended[key]["ts"]
        speeds = [event["args"]["bytes_sent"] for event in events if event["ph"] == "C"]
        assert len(speeds) >= 2 and max(speeds) > 0 and min(speeds) >= 0


def test_a_timeline_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make the folder"), trace(tmp_path / "none" / "x.json"):
        pass


def test_other_backends_have_no_counters_of_ours(ranks: Ranks, tmp_path: Path) -> None:
    for messages in ranks.run(tools.without_our_backend, tmp_path, "gloo"):
        for message in messages:
            assert message.startswith("UserError: this group has no backend")


def test_prometheus_text_is_well_formed() -> None:
    rail = {"interface": 'e"0\\', "address": "10.0.0.1", "share": 1.0}
    rail |= dict.fromkeys(("frames_sent", "bytes_sent", "bytes_received", "failovers", "stalls"), 3)
    document = {"rank": 2, "rails": [rail], "operations": []}
    keys = ("frames_resent", "frames_duplicate", "acknowledgements_sent")
    keys += ("connections_refused", "shared_memory_bytes_sent", "bytes_before_coding", "bytes_after_coding")
    text = metrics.to_prometheus(document | dict.fromkeys(keys, 1))
    lines = text.splitlines()
    assert text.endswith("\n")
    assert 'agspeed_comm_rail_sent_bytes_total{rank="2",rail="0",interface="e\\"0\\\\",address="10.0.0.1"} 3' in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) and all(name.endswith("_total") for name in names)
    samples = [line for line in lines if not line.startswith("#")]
    assert all(any(sample.startswith(f"{name}{{") for name in names) for sample in samples)

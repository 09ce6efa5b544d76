# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the transport: bounds and shares on figures whose truth is known, and one small run of each part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import distributed as dist

from agspeed import netbed
from benchmarks import cases, cells, table
from benchmarks.comm import all_reduce, blocks, bounds, network, programs, rail_change, sides, sizes, step
from benchmarks.comm.blocks import Block, Plan
from benchmarks.comm.bounds import Gradient, Link
from benchmarks.kinds import comm
from tests.python.support.benchmark_results import SCHEMA, result_of

MIB = 1 << 20


def block(*seconds: float, cpu: float = 0.1) -> Block:
    return Block(100.0, list(seconds), [cpu, cpu])


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_equal_hosts_have_the_bound_of_a_ring() -> None:
    links = [Link(1e6)] * 4
    assert bounds.all_reduce_seconds(1_000_000, links) == pytest.approx(1.5)
    assert bounds.all_reduce_seconds(1_000_000, links, count=8) == pytest.approx(12.0)
    assert bounds.all_reduce_seconds(1_000_000, [Link(1e6)] * 2) == pytest.approx(1.0)


@pytest.mark.parametrize("size", [4, 8])
def test_a_host_at_half_bandwidth_costs_p_over_p_minus_one(size: int) -> None:
    equal = bounds.all_reduce_seconds(MIB, [Link(1e6)] * size)
    slow = bounds.all_reduce_seconds(MIB, [Link(1e6)] * (size - 1) + [Link(5e5)])
    assert slow / equal == pytest.approx(size / (size - 1))


def test_what_a_pause_saved_up_is_subtracted_once() -> None:
    links = [Link(1e6, burst=150_000)] * 4
    assert bounds.all_reduce_seconds(1_000_000, links, count=2) == pytest.approx(3.0 - 0.15)
    assert bounds.all_reduce_seconds(1_000, links) == 0.0


def test_a_step_ends_when_its_last_bytes_are_through() -> None:
    links = [Link(1e6)] * 2  # one second per million bytes
    early, late = Gradient(1.0, 1_000_000), Gradient(5.0, 500_000)
    assert bounds.step_seconds([early, late], links, 5.0) == pytest.approx(5.5)
    assert bounds.step_seconds([early, Gradient(1.5, 500_000)], links, 1.5) == pytest.approx(2.5)


def test_buckets_close_as_ddp_closes_them() -> None:
    counts = [3, 300, 10, 700, 40, 41, 5000, 2, 60]
    tensors = [torch.empty(count) for count in counts]
    limits = [400, 2000]
    expected, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(counts))
    made = [Gradient(float(at), 4 * count) for at, count in enumerate(counts)]
    assert bounds.bucketed(made, limits) == [
        Gradient(float(max(indices)), sum(4 * counts[at] for at in indices)) for indices in expected
    ]


def test_backward_makes_gradients_from_the_last_layer_to_the_first() -> None:
    layers = step.expanded([{"count": 2, "mib": 1, "compute": 1.0}, {"count": 1, "mib": 4, "compute": 1.0}])
    assert layers == [(MIB, 0.25), (MIB, 0.25), (4 * MIB, 0.5)]
    made = step.gradients(layers, 3.0)
    assert [gradient.num_bytes for gradient in made] == [4 * MIB, MIB, MIB]
    assert [gradient.ready_seconds for gradient in made] == pytest.approx([2.0, 2.5, 3.0])


def test_buckets_can_only_add_to_the_fluid_bound() -> None:
    for case in cases.select([], "comm"):
        if case["part"] == "step":
            links = network.links(network.host_rates(case))
            for bucket_mb in case["bucket_mb"]:
                least = step.least_seconds(step.expanded(case["layers"]), bucket_mb, 1.5, links)
                assert 1.5 < least["fluid_seconds"] <= least["bucketed_seconds"] < 1.2 * least["fluid_seconds"]


def test_the_bound_of_submitted_buckets_is_that_of_the_rank_that_is_done_last() -> None:
    links = [Link(1e6), Link(1e6)]  # an all-reduce of two ranks sends each byte once
    early = [(100.5, 500_000), (101.0, 250_000), (102.5, 750_000)]  # the second step begins at 102.0
    late = [(100.5, 500_000), (101.25, 250_000), (102.5, 750_000)]
    found = step.over_submitted(block(2.0, 3.0), [early, late], links, 750_000)
    assert found == pytest.approx([2.0 / 1.5, 3.0 / 1.25])
    with pytest.raises(RuntimeError, match="fewer steps"):
        step.over_submitted(block(2.0, 3.0), [early, late[1:]], links, 750_000)


# --- networks and sizes -----------------------------------------------------------------------------------------------


def test_rates_become_payload_and_bursts() -> None:
    [link] = network.links([["200mbit", "50mbit"]])
    assert link.rate == pytest.approx(250e6 / 8 * 0.9564, rel=1e-4)
    assert link.burst == pytest.approx(2 * 131072 * 0.9564, rel=1e-4)


def test_every_case_is_within_the_limit_and_names_what_there_is() -> None:
    for case in cases.select([], "comm"):
        network.build(case)
        assert case["part"] in comm.PARTS
        assert [sides.find(name).name for name in case["sides"]] == case["sides"]
        assert all(sizes.parse(size) for size in case.get("sizes", []))


def test_rates_beyond_the_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="case x: 8 Gbit/s in all, at most 4"):
        network.build({"name": "x", "hosts": 4, "rates": ["1gbit", "1gbit"]})


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 * MIB), ("256 KiB", 1 << 18), ("1000B", 1000)])
def test_sizes_are_read_and_shown(text: str, size: int) -> None:
    assert sizes.parse(text) == size
    assert sizes.parse(sizes.show(size)) == size


@pytest.mark.parametrize("text", ["64", "64MB", "0B", "7B", "-4KiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write it like"):
        sizes.parse(text)


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_an_operation_ends_with_its_last_rank() -> None:
    answers: list[dict[str, Any]] = [
        {"started": 10.0, "ended": [11.0, 12.5], "cpu_seconds": 0.2},
        {"started": 10.2, "ended": [11.5, 12.0], "cpu_seconds": 0.4},
    ]
    found = Block.of_ranks(answers)
    assert found.seconds == pytest.approx([1.5, 1.0]) and found.started == 10.0
    assert found.cpu_seconds_per_operation == pytest.approx(0.15)


def test_samples_are_means_of_equal_groups() -> None:
    assert block(1.0, 3.0, 5.0, 7.0).samples(2) == [2.0, 6.0]


def test_blocks_have_eight_operations_or_more() -> None:
    assert blocks.plan(1.05, 1.0, 256).operations == 8
    assert blocks.plan(0.01, 1.0, 256) == Plan(8, 12)
    assert blocks.plan(1e-5, 1.0, 256).operations == 256


def test_slower_sides_do_what_fits_in_whole_turns() -> None:
    assert blocks.plan_within(1.1, 8.4, turns=1).operations == 8
    assert blocks.plan_within(4.2, 8.4, turns=1) == Plan(2, 1)
    assert blocks.plan_within(4.2, 8.4, turns=4) == Plan(1, 4)
    assert blocks.plan_within(100.0, 8.4, turns=1) == Plan(1, 1)
    assert blocks.plan_within(0.01, 1.0, turns=4) == Plan(8, 12)


def test_shares_and_ratios_of_known_times() -> None:
    links = [Link(1e6, burst=0.0)] * 4
    found = {"agspeed": [block(*[1.6] * 8)] * 2, "gloo": [block(*[3.2] * 4), block(*[4.8] * 4)]}
    ours = all_reduce.side_row("agspeed", found, Plan(8, 1), 1_000_000, links)
    assert ours["share"]["value"] == pytest.approx(1.5 / 1.6) == ours["sustained"] and ours["share"]["count"] == 16
    assert ours["cpu_ms"] == pytest.approx(100 / 8) and "ratio" not in ours
    assert ours["cpu_seconds_per_gb"] == pytest.approx(0.2 / (8 * 2 * 0.001))
    gloo = all_reduce.side_row("gloo", found, Plan(4, 1), 1_000_000, links)
    assert (gloo["ratio"]["low"], gloo["ratio"]["high"]) == pytest.approx((2.0, 3.0)) and gloo["ratio"]["count"] == 8
    assert gloo["sustained"] == pytest.approx(1.5 * 8 / (4 * 3.2 + 4 * 4.8))
    assert "share" not in all_reduce.side_row("gloo", found, Plan(4, 1), 1_000_000, None)


def test_a_control_off_the_mark_voids_the_size() -> None:
    read = {"agspeed": {}, "control": {"ratio": {"value": 1.03}}}
    assert all_reduce.judged({"sides": read})["reason"] == "agspeed against agspeed read 1.030"
    read["control"]["ratio"]["value"] = 1.019
    assert all_reduce.judged({"sides": read})["status"] == "ok"


def test_the_operation_under_way_at_a_change_counts_on_neither_side() -> None:
    old, new = [Link(1e6)] * 2, [Link(5e5)] * 2
    stream = block(*[1.25] * 4, 1.9, 2.5, 2.0, *[2.0] * 6)  # from 100.0 on; the fifth ends at 106.9
    found = rail_change.shares(stream, 105.2, 105.3, 1_000_000, (old, new))
    assert found["before"]["value"] == pytest.approx(0.8) and found["before"]["count"] == 4
    assert found["after"] == pytest.approx([0.8] + [1.0] * 7) and found["settled"]["value"] == pytest.approx(1.0)
    assert rail_change.shares(stream, 105.2, 107.0, 1_000_000, (old, new))["after"] == pytest.approx([1.0] * 7)
    with pytest.raises(RuntimeError, match="between operations 0 and 1 of 13: cannot judge"):
        rail_change.shares(stream, 100.0, 100.1, 1_000_000, (old, new))


# --- what ranks run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4, 8])
def test_repeated_sums_stay_exact(size: int) -> None:
    repeats = 200 // (size.bit_length() - 1)
    total = programs.total_pattern(size)
    held = total.clone()
    for _ in range(repeats - 1):
        held = torch.stack([held] * size).sum(0)
    assert held.isfinite().all() and torch.equal(held.double() / float(size) ** (repeats - 1), total.double())


def test_a_swapped_chunk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    tensor = torch.empty(4 * 1024 + 5)
    programs.fill(tensor, programs.pattern(1))
    programs.expect(tensor, programs.pattern(1))
    tensor[:1024], tensor[1024:2048] = tensor[1024:2048].clone(), tensor[:1024].clone()
    with pytest.raises(AssertionError, match=r"rank 3: \d+ of 4101 elements are not the sum"):
        programs.expect(tensor, programs.pattern(1))


# --- results ----------------------------------------------------------------------------------------------------------


def estimate(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01, "count": 16, "half_width": 0.01 / value}


def comm_cell(**parts: Any) -> dict[str, Any]:
    head = {"case": "comm/x", "kind": "comm", "stresses": "", "threads": 2, "status": "ok", "wall_seconds": 1.0}
    where = {"hosts": 2, "ranks": 2, "rates": [["100mbit"], ["50mbit"]]}
    where |= {"failed": {"gloo-mptcp": "Traceback\nOSError: no"}}
    return head | where | {"stream": {"bits_per_second": [9.5e7], "share": 0.99, "cpu_seconds_per_gb": 0.43}} | parts


def test_the_tables_show_every_part() -> None:
    row = {"operations": 8, "blocks": 2, "ms": estimate(84.0), "rail_shares": [1.0]}
    row |= {"cpu_ms": 1.5, "cpu_seconds_per_gb": 0.75}
    measured = {"agspeed": row | {"share": estimate(0.98)}, "gloo": row | {"ratio": estimate(4.0), "cpu_ms": 12.0}}
    reading = {"bytes": MIB, "status": "ok", "sides": measured}
    taken = {"seconds": estimate(2.2), "over_fluid": estimate(1.12), "over_bucketed": estimate(1.02)}
    taken |= {"over_submitted": estimate(1.01)}
    least = {"fluid_seconds": 2.0, "bucketed_seconds": 2.1, "cpu_seconds": 0.3}
    stepped = {"bucket_mb": 0, "compute_seconds": 1.5, "side": "agspeed", **taken, **least}
    joined = {"communication_per_backward": 0.5, "side": "gloo", "way": "agspeed-native", "stages": 4}
    joined |= {"seconds": estimate(2.0), "over_eager": estimate(1.02), "over_fluid": estimate(1.1)}
    joined |= {"overlap": estimate(0.8), "overlap_limit": 0.9}
    real = {
        "workload": "mlp",
        "side": "gloo",
        "way": "agspeed",
        "chosen": "native/b1-4",
        "reason": "",
        "cpu_seconds": 1,
    }
    real |= {
        "seconds": estimate(2.0),
        "over_eager": estimate(1.2),
        "over_best_other": estimate(1.1),
        "best_other": "eager",
    }
    laid = {"communication_per_backward": 2.0, "side": "agspeed", "chosen": "eager/b1-4", "num_steps": 98}
    laid |= {"num_pairs": 12, "seconds": estimate(0.7), "best_cap": "4 MiB", "cap_seconds": {"4 MiB": 0.69}}
    laid |= {"over_best_cap": estimate(1.02), "over_default": estimate(0.8)}
    changed = {"bytes": MIB, "side": "agspeed", "from": ["2mbit"], "to": ["1mbit"], "after": [0.5, 0.9]}
    changed |= {"before": estimate(0.97), "settled": estimate(0.96)}
    voided = {"bytes": 2 * MIB, "status": "void", "reason": "agspeed against agspeed read 0.900", "sides": measured}
    found = result_of(
        comm_cell(sizes=[reading, voided]),
        comm_cell(steps=[stepped]),
        comm_cell(joins=[joined]),
        comm_cell(layouts=[laid]),
        comm_cell(reals=[real]),
        comm_cell(changes=[changed]),
    )
    jsonschema.validate(found, SCHEMA)
    text = table.render(found)
    assert "| comm/x | 2, 2 | 100mbit; 50mbit | 0.10 Gbit/s, 0.990 | 0.43 s |" in text
    assert "| 1 MiB | 84 | 0.980 (0.970 to 0.990) | 1.5 (0.75) | 4.000 (3.990 to 4.010) | gloo 12 (0.75) |" in text
    assert "| 2 MiB | **void**: agspeed against agspeed read 0.900 |" in text
    over = "1.010 (1.000 to 1.020) | 1.020 (1.010 to 1.030) | 1.120 (1.110 to 1.130)"
    assert f"| default | 1.5 s | agspeed | 2.200 s | {over} | 0.30 s |" in text
    assert "| 2 | agspeed | eager/b1-4, 98 steps, 12 pairs | 0.700 s | 1.020 (1.010 to 1.030) (4 MiB) |" in text
    assert (
        "| 0.5 | gloo | agspeed-native | 4 | 2.000 s | 1.020 (1.010 to 1.030) | 0.800 (0.790 to 0.810) | 0.90 |" in text
    )
    assert (
        "| mlp | gloo | agspeed: native/b1-4 | 2.000 s | 1.200 (1.190 to 1.210) | 1.100 (1.090 to 1.110) (eager) |"
        in text
    )
    assert "| 2mbit → 1mbit | agspeed | 0.970 (0.960 to 0.980) | 0.50 0.90 |" in text
    assert "- comm/x, gloo-mptcp: **failed**, OSError: no" in text


TINY: dict[str, dict[str, Any]] = {
    "all_reduce": {"rates": ["100mbit", "50mbit"], "sides": ["agspeed", "gloo-list"], "sizes": ["64KiB"]},
    "shared": {"part": "all_reduce", "hosts": 1, "ranks_per_host": 2, "rates": ["unshaped"], "sizes": ["4KiB"]}
    | {"sides": ["agspeed", "gloo"]},
    "step": {
        "rates": ["100mbit"],
        "sides": ["agspeed"],
        "layers": [{"count": 3, "mib": 1, "compute": 1.0}],
        "bucket_mb": [0],
        "compute_seconds": [0.1],
        "steps": 1,
    },
    "join": {
        "rates": ["200mbit"],
        "sides": ["agspeed"],
        "layers": [{"count": 4, "mib": 1, "compute": 1.0}],
        "bucket_mb": 1,
        "ways": ["eager", "agspeed-aot", "agspeed-aot-uncut"],
        "communication_per_backward": [1.0],
        "steps": 1,
    },
    "layout": {
        "rates": ["1gbit"],
        "sides": ["agspeed"],
        "layers": [{"count": 4, "mib": 1, "compute": 1.0}],
        "bucket_mb": [1, 25],
        "communication_per_backward": [1.0],
        "tuning_seconds": 120,
        "steps": 1,
    },
    "real": {
        "rates": ["200mbit"],
        "sides": ["agspeed"],
        "workloads": ["tiny_mlp"],
        "ways": ["eager", "control", "agspeed"],
        "tuning_seconds": 2,
    },
    "sharded": {
        "part": "real",
        "rates": ["200mbit"],
        "sides": ["agspeed"],
        "wrapper": "fully_shard",
        "workloads": ["mlp_mixer"],
        "ways": ["eager", "control", "agspeed"],
        "tuning_seconds": 2,
    },
    "rail_change": {
        "rates": ["100mbit", "100mbit"],
        "changes": [["100mbit", "50mbit"]],
        "sides": ["agspeed"],
        "sizes": ["1MiB"],
    },
}


_LONGEST = ("all_reduce", "join", "layout", "rail_change", "real", "shared", "sharded", "step")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in _LONGEST else name for name in sorted(TINY)]
)
def test_a_small_run_of_each_part(name: str, tmp_path: Path) -> None:
    if reason := netbed.unavailable():
        pytest.skip(reason)
    case = {
        "name": f"comm/{name}",
        "kind": "comm",
        "part": name,
        "stresses": "",
        "hosts": 2,
        "seconds": 0,
        **TINY[name],
    }
    settings: dict[str, Any] = {"candidates": [], "limits": {}, "settle_seconds": 1, "steps": 0}
    settings |= {"sizes": [], "seconds": 0.0, "sides": None}
    found = cells.run([case], [1], settings, "test", None, tmp_path / "out.json")
    jsonschema.validate(found, SCHEMA)
    [cell] = found["cells"]
    assert cell["status"] == "ok" and not cell["failed"], json.dumps(cell, indent=1)
    assert f"comm/{name}" in table.render(found)

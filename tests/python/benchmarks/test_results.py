# SPDX-License-Identifier: Apache-2.0
"""Cases, cells and tables: every workload has its case, results follow the schema, tables show the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks import cases, cells, kinds, run, table, workloads
from benchmarks.kinds import losses, operators, regret, shared_process, steady, time_to_speed
from benchmarks.measure import candidates
from tests.python.support.benchmark_results import SCHEMA, comparison, result_of, steady_cell


def test_every_workload_has_its_case_and_every_case_its_workload() -> None:
    steady_cases = cases.select([], "steady")
    assert sorted(case["workload"] for case in steady_cases) == workloads.names()
    assert all(0 <= case["gemm_share"] <= 1 for case in steady_cases)
    assert {case["kind"] for case in cases.load()} == set(kinds.NAMES)
    for case in cases.load():
        assert case.get("workload", "tiny_mlp") in workloads.names()
        assert all(name in candidates.CANDIDATES for name in case.get("candidates", []))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--case", "alexnet"], "unknown case alexnet"),
        (["run", "--kind", "speedy"], "no case of kind 'speedy'; kinds: bytes, codes, comm, elastic, elastic_cost"),
        (["run", "--candidates", "eager,xla"], "unknown candidate 'xla'; known: eager, eager-retained, aot_eager"),
        (["table", "nowhere.json"], "nowhere.json is not a readable result file"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_list_shows_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(case["name"] in shown for case in cases.load())


def test_slow_operators_are_listed_unless_their_control_is_unsteady() -> None:
    def row(call: str, speedup: float, control: float = 1.0) -> dict[str, Any]:
        sides = {"native": comparison(speedup), "control": comparison(control)}
        return {"family": "max_pool", "seed": 3, "call": call, **sides}

    rows = [row("fast", 1.5), row("slow", 0.8), row("unsteady", 0.7, 1.2), *(row("equal", 1.0) for _ in range(3))]
    body = operators.summarize({}, [{"rows": rows, "environment": {"cores": [0]}}])
    assert [each["call"] for each in body["operators"]][:2] == ["unsteady", "slow"]
    head = {"case": "operators/native", "kind": "operators", "stresses": "", "threads": 1}
    shown = table.render(result_of(head | body))
    assert "| slow |" in shown and not any(f"| {call} |" in shown for call in ("fast", "unsteady", "equal"))
    assert operators.summarize({}, [{"rows": rows[2:3], "environment": {}}])["status"] == "void"


def test_the_oracle_is_the_best_fixed_choice() -> None:
    cell = steady_cell("a", {"inductor": 1.5, "aot_eager": 3.0, "agspeed": 1.8})
    assert cell["oracle"] == {"winner": "inductor", "speedup": 1.5}
    assert cell["agspeed_to_oracle"] == pytest.approx(1.2) and cell["winner"] == "aot_eager"
    assert steady_cell("a", {"inductor": 0.5})["oracle"] == {"winner": "eager", "speedup": 1.0}


def test_a_control_off_the_mark_voids_the_cell() -> None:
    cell = steady_cell("a", {"inductor": 1.5}, control=1.05)
    assert (cell["status"], cell["reason"]) == ("void", "eager against eager read 1.050")
    assert "**void**, eager against eager read 1.050" in table.render(result_of(cell))


def test_the_table_sums_up_its_cells() -> None:
    found = result_of(
        steady_cell("a", {"inductor": 2.0, "agspeed": 2.0}), steady_cell("b", {"inductor": 0.5, "agspeed": 1.0})
    )
    jsonschema.validate(found, SCHEMA)
    text = table.render(found)
    assert "| a | 1 | 25% | 2.00 | 2.00 ± 0.010 | 2.00 ± 0.010 | native |" in text
    assert "Inductor: geomean 1.000, worst 0.500 (b, 1 threads)" in text
    assert "agspeed / best of eager and Inductor: geomean 1.000, worst 1.000" in text
    assert "Fastest without agspeed: inductor 1, eager 1" in text
    assert "X, 2 cores, AVX2, torch 2.11.0; 2026-01-02" in text


def test_agspeed_is_compared_with_the_best_levelled_candidate() -> None:
    ways = {"eager": 1.5, "eager-levelled": 1.3, "inductor-levelled": 1.1}
    rows = {"agspeed": {"status": "timed", "chosen": {}, "over": {name: {"value": v} for name, v in ways.items()}}}
    rows["agspeed"] |= comparison(1.5)
    cell = steady.summarize({}, [{"eager_ms": 2.0, "control": comparison(1.0), "candidates": rows}])
    assert cell["agspeed_to_levelled"] == 1.1
    assert "agspeed_to_levelled" not in steady_cell("a", {"agspeed": 1.5})


def test_equal_code_shares_its_time() -> None:
    cell = steady_cell("a", {"inductor": 2.0})
    cell["candidates"]["inductor-max-autotune"] = {"status": "same-code", "as": "inductor"}
    text = table.render(result_of(cell))
    assert "same code as Inductor" in text and "max-autotune: geomean 2.000" in text


def test_a_failed_candidate_is_listed() -> None:
    cell = steady_cell("a", {"inductor": 2.0})
    cell["candidates"]["agspeed"] = {"status": "failed", "reason": "RuntimeError: no"}
    assert "- a, 1 threads, agspeed: **failed**, RuntimeError: no" in table.render(result_of(cell))


def test_comparing_two_results_looks_at_intervals() -> None:
    before = result_of(steady_cell("a", {"inductor": 1.0, "agspeed": 1.500}))
    after = result_of(steady_cell("a", {"inductor": 1.2, "agspeed": 1.504}))
    changes = table.render_changes(before, after)
    assert "| inductor | 1.00 ± 0.005 | 1.20 ± 0.006 | faster |" in changes
    assert changes.count("no change shown") == 1


def test_results_without_common_steady_cells_cannot_be_compared() -> None:
    assert "no steady cell" in table.render_changes(result_of(), result_of(steady_cell("a", {"inductor": 1.0})))


def test_losses_have_their_table_and_fail_if_ranks_differ() -> None:
    case = {"models": ["char_gpt"], "ways": ["dense", "local 8 1"]}

    def ended(seed: int, *, equal: bool = True) -> dict[str, Any]:
        rows = [
            {
                "way": way,
                "first": 4.8,
                "held_out": held_out + seed / 10,
                "sends": "",
                "mib_per_step": sent,
                "equal": equal,
            }
            for way, held_out, sent in (("dense", 2.4, 0.5), ("local 8 1", 2.5, 0.2))
        ]
        return {"model": "char_gpt", "seed": seed, "rows": rows, "environment": {}}

    head = {"case": "a", "kind": "losses", "stresses": "", "threads": 2, "wall_seconds": 1.0}
    found = result_of(head | losses.summarize(case, [ended(0), ended(1)]))
    jsonschema.validate(found, SCHEMA)
    assert "| a | char_gpt | local 8 1 | 4.800 | 2.550 | 2.500 to 2.600 | 1.041 | 0.200 |" in table.render(found)
    failed = losses.summarize(case, [ended(0), ended(1, equal=False)])
    assert (
        failed["status"] == "failed" and failed["reason"] == "parameters differ: dense (char_gpt), local 8 1 (char_gpt)"
    )


def test_cases_are_of_the_kind_asked_for() -> None:
    assert [case["name"] for case in cases.select(["bert"], None)] == ["bert"]
    with pytest.raises(ValueError, match="bert: not of kind 'comm'"):
        cases.select(["bert", "comm/rails-1"], "comm")


def test_a_case_is_narrowed_to_workloads_that_it_has() -> None:
    [case] = cases.select(["comm/real-200"], None)
    assert cases.narrowed(case, ["vit"]) == case | {"workloads": ["vit"]}
    with pytest.raises(ValueError, match=r"comm/real-200 has no workload alexnet; it has: mlp, .*vit"):
        cases.narrowed(case, ["vit", "alexnet"])


def test_regret_is_measured_first_and_computed_beyond() -> None:
    eager = [0.010 * (index + 1) for index in range(1000)]
    compiled = [1.0 + 0.005 * (index + 1) for index in range(1000)]
    auto = [0.5 + 0.006 * (index + 1) for index in range(1000)]
    row = regret.horizon_row(100, auto, [eager, compiled])
    assert row["basis"] == "measured" and row["paid"] == pytest.approx(1.1 / 1.0)
    assert regret.extra_seconds(auto) == pytest.approx(0.5)
    row = regret.horizon_row(10_000, auto, [eager, compiled])
    assert row["basis"] == "computed"
    assert row["paid"] == pytest.approx(60.5 / 51.0) and row["free"] == pytest.approx(60.5 / 50.0)


def test_the_speed_is_reached_where_twenty_steps_begin_without_a_pause() -> None:
    seconds = [8.0, *[0.2] * 30, 3.0, *[0.1] * 10, 2.0, *[0.1] * 15, 0.103, *[0.1] * 60]
    ends = [sum(seconds[:count]) for count in range(len(seconds) + 1)]
    found = time_to_speed.milestones(ends, len(ends) - 60)
    assert found["step_ms"] == pytest.approx(100)
    assert found["seconds"] == pytest.approx(8 + 6 + 3 + 1 + 2), "the pause of 2 s lies within the steps before"
    assert found["standstill_seconds"] == pytest.approx(8.0)
    assert time_to_speed.milestones(ends[:20], 10)["seconds"] is None


def test_time_to_speed_has_its_table() -> None:
    ends = [0.0, *(30 + 0.08 * count for count in range(30))]
    way = {"seconds": 40.0, "settled_seconds": 0.0, "standstill_seconds": 35.0, "step_ms": 80.0, "steps": 300}
    way |= {"ends": ends}
    ours = way | {"candidate": "agspeed", "seconds": 50.0, "standstill_seconds": 6.0, "chosen": {"model": "native"}}
    auto = ours | {"candidate": "agspeed-auto", "seconds": 75.0}
    head = {"case": "a", "kind": "time_to_speed", "stresses": "", "threads": 2, "wall_seconds": 1.0}
    ways = lambda *rows: [dict(row) for row in rows]  # noqa: E731 - `summarize` takes them over
    found = result_of(head | time_to_speed.summarize({}, ways(way | {"candidate": "inductor"}, ours, auto)))
    jsonschema.validate(found, SCHEMA)
    assert (
        "| a | 2 | 40.0 (80) | 50.0 (80) | 75.0 (80) | 1.25 / 1.50 | 30.0 / 30.0 | 35.0 | 6.0 | 6.0 | native |"
        in table.render(found)
    )
    never = time_to_speed.summarize({}, ways(way | {"candidate": "inductor"}, ours | {"seconds": None}, auto))
    assert never["status"] == "void" and never["reason"].startswith("agspeed did not settle")
    late = time_to_speed.summarize({}, ways(way | {"candidate": "inductor"}, ours, auto | {"seconds": None}))
    shown = table.render(result_of(head | late))
    assert "| a | 2 | 40.0 (80) | 50.0 (80) | still tuning (80) | 1.25 / – |" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("control", "status"), [(1.0, "ok"), (1.1, "void")])
def test_a_shared_process_is_compared_model_by_model(control: float, status: str) -> None:
    def ended(**speedups: float) -> dict[str, Any]:
        models = {
            model: {
                "chosen": "native",
                "settle_seconds": 1.0,
                "control": comparison(control)["speedup"],
                "speedup": comparison(speedup)["speedup"],
            }
            for model, speedup in speedups.items()
        }
        return {"models": models, "environment": {}}

    case = {"name": "shared_process/two", "workloads": ["a", "b"]}
    assert [row["models"] for row in shared_process.plan(case, 2, {})] == [["a"], ["b"], ["a", "b"], ["a"], ["b"]]
    found = shared_process.summarize(
        case, [ended(a=1.0), ended(b=2.0), ended(a=1.0, b=1.0), ended(a=1.0), ended(b=2.42)]
    )
    head = {"case": case["name"], "kind": "shared_process", "stresses": "", "threads": 2, "wall_seconds": 1.0}
    result = result_of(head | found)
    jsonschema.validate(result, SCHEMA)
    assert found["status"] == status
    ratios = [row["over_alone"] for row in found["shared"]]
    assert [row["value"] for row in ratios] == pytest.approx([1.0, 1 / 2.2])
    assert ratios[1]["low"] < 1 / 2.42 < 1 / 2.0 < ratios[1]["high"], "the models alone differ by as much"
    if status == "ok":
        assert "| 2 | b | 2.00 ± 0.010 | 2.42 ± 0.012 | 1.00 ± 0.005 | 0.455 (" in table.render(result)


@pytest.mark.thorough
def test_a_real_run_gives_a_valid_result(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    arguments = ["--threads", "1", "--candidates", "eager,aot_eager", "--pairs", "4", "--max-pairs", "4"]
    run.main(["run", "--case", "tiny_mlp", *arguments, "--json", str(output)])
    found = cells.read(output)
    jsonschema.validate(found, SCHEMA)
    [cell] = found["cells"]
    assert cell["status"] in ("ok", "void"), cell
    assert cell["candidates"]["aot_eager"]["status"] == "timed" and cell["eager_memory"]["bytes"] > 0
    assert len(cell["environment"]["cores"]) == 1


@pytest.mark.slow
def test_a_crashed_worker_is_a_failed_cell(tmp_path: Path) -> None:
    case = {"name": "broken", "kind": "steady", "stresses": "", "workload": "missing", "gemm_share": 0.0}
    settings = {"candidates": ["eager"], "limits": {}, "settle_seconds": 1, "steps": 0}
    found = cells.run([case], [1], settings, "run", str(tmp_path), None)
    assert found["cells"][0]["status"] == "failed"
    assert "unknown workload 'missing'" in found["cells"][0]["reason"]
    jsonschema.validate(found, SCHEMA)

# SPDX-License-Identifier: Apache-2.0
"""Kept results: pages are made of them, bad files are refused by name and field, and runs are kept."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.kept import runs, values
from benchmarks.kept.tables import Table
from tests.python.support.benchmark_results import result_of, steady_cell

TABLE = "steady/one_thread"
ALL = results.tables(results.FOLDER)


def test_no_text_of_a_table_has_a_figure() -> None:
    """Figures are values, which templates show. Versions and code may have digits."""
    found = []
    for name, table in ALL.items():
        plain = {key: value for key, value in table.definition.items() if key not in ("pick", "values")}
        texts = re.findall(r'"((?:\\.|[^"\\])*)"', json.dumps(plain, ensure_ascii=False))
        found += [f"{name}: {text}" for text in texts if re.search(r"\d\.\d", _without_fields(text))]
    assert not found, "\n" + "\n".join(found)


def _without_fields(text: str) -> str:
    return re.sub(r"\{[^}]*\}|`[^`]*`|\b2\.\d\d\.\d\b", "", text)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "template", "text"),
    [
        (1.2, "{x:.2f}", "1.20"),
        (562.0, "{x}", "562.0"),
        (-12, "{x.value:+.0f}", "−12"),
        (0.0017, "{x:+.2%}", "+0.17 %"),
        (1550, "{x:s3} and {x.value:s3}", "1550 and 1550"),
        (53, "{x:s3}", "53.0"),
        (262144, "{x:bytes}", "256 KiB"),
        (10000, "{x:,}", "10,000"),
        ({"value": 1.2, "low": 1.19, "high": 1.21}, "{x:.2f}", "1.20 (1.19 to 1.21)"),
        ({"value": -1, "low": -2, "high": 3}, "{x.value:+.1f} ({x.interval:.1f})", "−1.0 (−2.0 to 3.0)"),
        ({"value": 2.13, "low": 2.09}, "{x:.2f} {x.low:.2f}", "2.13 2.09"),
        ({"low": 0.006, "high": 0.015}, "{x:.1%}", "0.6 to 1.5 %"),
        ([1, 2.5, None], "{x} {x: /}", "1, 2.5, - 1 / 2.5 / -"),
        ([[1, 2], [3, 4]], "{x:.1f} and {x: /}", "1.0 / 2.0, 3.0 / 4.0 and 1, 2 / 3, 4"),
        ("native", "{x}", "native"),
    ],
)
def test_a_value_is_shown_by_its_template(value: Any, template: str, text: str) -> None:
    assert values.expand(template, {"x": values.read(value)}) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [("{y}", "lacks y"), ("{x.high_end}", "does not fit"), ("{x[3]}", "does not fit"), ("{x:.2q}", "does not fit")],
)
def test_a_template_that_does_not_fit_is_a_sentence(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        values.expand(template, {"x": values.read(1.5)})


# --- bad files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of all kept results, with their pages beside it."""
    copy = tmp_path / "benchmarks" / "results"
    shutil.copytree(results.FOLDER, copy)
    for page in results.PAGES:
        shutil.copy(results.FOLDER.parent / page, copy.parent / page)
    return copy


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A copy of one table."""
    return Path(shutil.copytree(results.FOLDER / TABLE, tmp_path / "table"))


def change(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    edit(found)
    path.write_text(json.dumps(found), encoding="utf-8")


def edited(row: dict[str, Any], **head: Any) -> Callable[[dict[str, Any]], None]:
    def edit(found: dict[str, Any]) -> None:
        found["rows"][0] |= row
        found |= head

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda found: found["rows"][0].pop("inductor"), "bert.json: rows[0] lacks inductor, which the column 'Induc"),
        (edited({}, case="berd"), "bert.json: case is 'berd', and benchmarks/cases has no such case"),
        (edited({}, case="vit"), "bert.json: the file of vit is named vit.json"),
        (edited({"agspeed": float("nan")}), "bert.json: rows[0].agspeed is nan, which is not a finite number"),
        (edited({"agspeed": float("inf")}), "bert.json: rows[0].agspeed is inf, which is not a finite number"),
        (edited({"agspeed": {"value": "fast"}}), "bert.json: rows[0].agspeed.value: 'fast' is not of type 'number'"),
        (edited({"agspeed": {"low": 1.0}}), "bert.json: rows[0].agspeed: 'high' is a required property"),
        (edited({"control": 1.0}), "table.json: values has control, and so have the rows"),
        (edited({}, date="2026-13-01"), "bert.json: date is '2026-13-01', which is no date"),
        (edited({}, date="2026-11-28"), "table.json: mixes: bert has another date than batch_norm"),
        (edited({}, machine={"cores": 2}), "bert.json: machine: 'cpu' is a required property"),
        (lambda found: found.pop("command"), "bert.json: 'command' is a required property"),
    ],
)
def test_a_bad_file_is_a_sentence_with_file_and_field(edit: Any, message: str, table: Path) -> None:
    change(table / "bert.json", edit)
    with pytest.raises(ValueError, match=re.escape(f"{table}/{message}")):
        Table.read(table).markdown()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda found: found["rows"].append("berd"), "rows names berd, and the folder has no berd.json"),
        (lambda found: found["rows"].remove("bert"), "rows does not name bert, and the folder has bert.json"),
        (lambda found: found["columns"][2].pop("cell"), "rows[0]: no cell for the column 'Inductor'"),
        (lambda found: found["notes"].append("{least}"), "notes[6] lacks least"),
        (lambda found: found.update(mixes=["torch"]), "mixes: no torch differs"),
        (lambda found: found.update(column=[]), "Additional properties are not allowed"),
    ],
)
def test_a_bad_table_is_a_sentence_with_file_and_field(edit: Any, message: str, table: Path) -> None:
    change(table / "table.json", edit)
    with pytest.raises(ValueError, match=re.escape(f"{table}/table.json: {message}")):
        Table.read(table).markdown()


def test_broken_json_is_an_error_of_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / TABLE / "bert.json").write_text('{"case": "bert",', encoding="utf-8")
    monkeypatch.setattr(results, "FOLDER", folder)
    assert results.main([]) == 2
    assert f"error: {folder / TABLE}/bert.json is not JSON: Expecting property name" in capsys.readouterr().err


def test_files_side_by_side_have_equally_many_rows(folder: Path) -> None:
    change(folder / "comm/layout/comm-layout-gpt.json", lambda found: found["rows"].pop())
    with pytest.raises(ValueError, match=r"layout/table.json: rows\[0\]: these files have different numbers of rows"):
        results.pages(folder)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_the_check_names_the_first_line_that_differs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", folder)
    change(folder / TABLE / "bert.json", edited({"inductor": 0.88}))
    assert results.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"RESULTS\.md:\d+ has '\| bert \| 39\.7 \| 0\.87 .* give '\| bert \| 39\.7 \| 0\.88 ", shown)
    assert shown.count("\n") == 1
    assert results.main([]) == 0 and results.main(["--check"]) == 0


def test_a_table_is_on_one_page(folder: Path) -> None:
    template = folder / "RESULTS.template.md"
    text = template.read_text(encoding="utf-8")
    template.write_text(text.replace(f"<!-- table: {TABLE} -->", ""), encoding="utf-8")
    with pytest.raises(ValueError, match=f"the table {TABLE} must be on one page, and is on none"):
        results.pages(folder)
    template.write_text(text.replace(TABLE, "steady/three_threads"), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"has the table steady/three_threads, and no steady/three_threads/table\.json"
    ):
        results.pages(folder)


# --- runs -------------------------------------------------------------------------------------------------------------

SPEEDUPS = {"inductor": 1.5, "inductor-max-autotune": 1.25, "agspeed": 1.625}


@pytest.fixture
def two_rows(folder: Path) -> Path:
    """The folder of a table that is narrowed to two rows and has no figures of an earlier run."""

    def narrow(table: dict[str, Any]) -> None:
        table["rows"], table["values"], table["notes"] = ["bert", "vit"], {}, ["Controls are {control:.3f}."]

    change(folder / TABLE / "table.json", narrow)
    for path in (folder / TABLE).glob("*.json"):
        if path.stem not in ("bert", "table", "vit"):
            path.unlink()
    return folder / TABLE


def write(path: Path, *cells: dict[str, Any]) -> Path:
    path.write_text(json.dumps(result_of(*cells)), encoding="utf-8")
    return path


def test_a_run_is_kept_with_its_samples(
    two_rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", two_rows.parents[1])
    shared = steady_cell("vit", {"inductor": 2.0, "agspeed": 2.0}, control=0.995)
    shared["candidates"]["inductor-max-autotune"] = {"status": "same-code", "as": "inductor"}
    other = steady_cell("bert", SPEEDUPS) | {"threads": 2}
    gan, void = steady_cell("gan", SPEEDUPS), steady_cell("vit", SPEEDUPS, control=1.05)
    first = write(two_rows.parent / "a.txt", steady_cell("bert", SPEEDUPS), other, gan, void)
    again = write(two_rows.parent / "b.txt", shared)
    (two_rows / "vit.json").unlink()
    assert results.main(["--keep", str(first), str(again), "--table", TABLE]) == 0, capsys.readouterr().err
    assert "kept bert, vit; left out gan\n" in capsys.readouterr().out
    kept = json.loads((two_rows / "bert.json").read_text(encoding="utf-8"))
    assert kept["samples"] == steady_cell("bert", SPEEDUPS) and "rows" not in kept
    assert (kept["torch"], kept["date"], kept["threads"]) == ("2.11.0", "2026-01-02", 1)
    page = (two_rows.parents[2] / "RESULTS.md").read_text(encoding="utf-8")
    assert "| bert | 2 | 1.50 | 1.25 | 1.62 | 1.08 | native |\n| vit | 2 | 2.00 | 2.00 | 2.00 | 1.00 | native |" in page
    assert "Controls are 0.995 to 1.001." in page


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([steady_cell("bert", SPEEDUPS, control=1.05)], "bert at 1 threads is void: eager against eager read 1.050"),
        ([steady_cell("gan", SPEEDUPS)], "a.txt: no cell for "),
        ([steady_cell("bert", SPEEDUPS)], "table.json: mixes: vit has another machine than bert"),
        (
            [steady_cell("bert", SPEEDUPS | {"agspeed": float("nan")})],
            "samples.candidates.agspeed.speedup.value is nan",
        ),
        ([steady_cell("bert", SPEEDUPS)] * 2, "bert at 1 threads is not the only cell of this case"),
    ],
)
def test_a_run_that_does_not_fit_changes_no_file(cells: Any, message: str, two_rows: Path) -> None:
    path = write(two_rows.parent / "a.txt", *cells)
    before = {each: each.read_bytes() for each in two_rows.iterdir()}
    with pytest.raises(ValueError, match=re.escape(message)):
        results.keep([path], two_rows)
    assert {each: each.read_bytes() for each in two_rows.iterdir()} == before


def estimate(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01, "count": 16, "half_width": 0.01 / value}


SIDES = {"agspeed": {"ms": estimate(1550), "share": estimate(0.98)}, "gloo": {"ratio": estimate(4)}}
WAYS = {"agspeed": {"ms": estimate(97), "share": 0.98, "rate_of_agspeed": 1}, "control": {"rate_of_agspeed": 1}}
WAYS |= {name: {"rate_of_agspeed": 2.5} for name in ("nccl", "nccl-mptcp")}
FAULT = {"fault": "none", "strikes": 0, "wrong_bytes": 0, "stalls_ms": [114.2, 82.1]}
CODED = {"agspeed": {"ms": estimate(332)}, "agspeed-coded": {"ms": estimate(236), "ratio": estimate(0.71)}}
CODED |= {"control": {"ratio": estimate(1)}}
CODE = {"code": "lossless", "values": "gradients", "dtype": "bfloat16", "ratio": 1.4}
CODE |= {f"{name}_gb_per_s": estimate(3) for name in ("encode", "decode", "copy")}
EXCHANGE = {"workload": "vgg16", "rates": "1gbit", "way": "agspeed", "sent_mb": {"mean": 50.6}, "fewer_bytes": 1.2}
EXCHANGE |= {"seconds": estimate(0.4), "speed": estimate(1.1), "error": 4e-8}
QUIET = {"slowdown": estimate(1), "ms": 10.7}
LEVELLED = steady_cell("bert", SPEEDUPS | {"agspeed-native": 1.4, "eager-levelled": 1.1, "inductor-levelled": 1.6})
for settled in LEVELLED["candidates"].values():
    settled["settle_seconds"] = 20.0
FAULTED = {"faults": 200, "lost_steps": 0, "goodput": 0.93, "memory_growth_per_hour": 0.008}
FAULTED |= {name: {"p50": 0.1, "p95": 0.2, "max": 0.3} for name in ("noticed", "resumed")}
CELLS: dict[str, dict[str, Any]] = {
    "comm": {
        "exchanges": [EXCHANGE],
        "sizes": [{"bytes": 4 << 20, "status": "ok", "sides": SIDES | {"control": {"ratio": estimate(1)}}}],
        "coded": [{"status": "ok", "values": "gradients", "dtype": "bfloat16", "sides": CODED}],
        "codes": [CODE],
        "reals": [{"workload": "mlp", "side": "agspeed-coded", "seconds": estimate(0.1), "over_uncoded": estimate(1)}],
    },
    "elastic": {"ranks": 2, "elastic": QUIET, "control": QUIET, "advance_us": estimate(11), "jobs": [FAULTED]},
    "losses": {
        "losses": [
            {"model": "char_gpt", "way": "int8", "mean": 2.3, "lowest": 2.2, "highest": 2.4, "over_dense": 1.0}
            | {"mib_per_step": 0.1}
        ]
    },
    "nccl_net": {"operations": [{"bytes": 4 << 20, "ways": WAYS}], "faults": [FAULT]},
    "published": steady_cell("transformers/gpt2", SPEEDUPS | {"agspeed-native": 1.4}),
    "retained": {
        "workload": "word_lm",
        "eager_ms": 9.1,
        "candidates": {"eager-retained": {"status": "timed", "chosen": {}, "speedup": estimate(1.2)}},
    },
    "steady": LEVELLED | {"agspeed_to_levelled": 1.02},
}
"""Kind -> what its tables take from a cell."""


@pytest.mark.parametrize("name", [name for name, table in ALL.items() if "pick" in table.definition])
def test_a_table_takes_all_its_columns_from_a_cell(name: str) -> None:
    definition = ALL[name].definition
    rows = runs.rows(CELLS[name.split("/")[0]], definition)
    assert [row.keys() for row in rows] == [definition["pick"].keys()]
    head = {"machine": {"cpu": "X"}, "date": "2026-01-02", "command": "run", "case": "x"}
    columns = [column for column in definition["columns"] if column["cell"] not in ("{case}", "{rails}")]
    assert Table("x", {"columns": columns, "rows": ["x"]}, {"x": head | {"rows": rows}}).markdown()


def test_a_void_part_of_a_cell_is_refused() -> None:
    size = {"bytes": 4, "status": "void", "reason": "agspeed against agspeed read 0.900"}
    with pytest.raises(ValueError, match=r"a part of the cell is void: agspeed against agspeed read 0\.900"):
        runs.rows({"sizes": [size]}, ALL["comm/rails"].definition)


def test_a_cell_without_the_list_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="the cell has no faults"):
        runs.rows({"operations": []}, ALL["nccl_net/faults"].definition)


@pytest.mark.parametrize("arguments", [["--keep", "a.json"], ["--keep", "a.json", "--table", TABLE, "--check"]])
def test_options_that_do_not_fit_together_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        results.main(arguments)


def test_a_table_without_places_says_so() -> None:
    with pytest.raises(ValueError, match="has no `pick`"):
        runs.rows(CELLS["comm"], ALL["comm/real"].definition)

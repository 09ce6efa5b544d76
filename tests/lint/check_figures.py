# SPDX-License-Identifier: Apache-2.0
"""The figures in the tables of READMEs have a source, and the pages of results are written from the kept results.

A figure is a number with decimals or with a times sign. Versions, and texts in back quotes, have none. The sources of
the tables of speeds in README.md and comm/README.md are kept results (`benchmarks/results`). A test compares or prints
the figures of other tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from benchmarks import results
from benchmarks.kept import values
from benchmarks.kept.tables import Table
from tests.lint import sources

COMPARED = {
    ("comm/README.md", "collective"): "tests/comm/schedule/catalog_test.cpp",
    ("comm/README.md", "operation"): "tests/lint/check_figures.py",
    ("runtime/tune/README.md", "noise"): "tests/runtime/tune/tuner_thrift_test.cpp",
}
"""README and the title of a table's first column -> the test that owns its figures, and names the README."""

SPEEDS = "training step"
"""The table of README.md begins so. It has Inductor's and agspeed's speeds with all cores, and then with 1 thread."""
MODELS = [("steady/two_threads", "published/two_threads"), ("steady/levelled_one_thread", "published/one_thread")]
"""The kept tables of the workloads and of the published models, for each pair of columns."""
MEASURED = {
    "The values of published models with all cores": ["published/two_threads"],
    "The other values": ["steady/two_threads", "steady/levelled_one_thread", "published/one_thread"],
}
"""Subject of the sentence that names machine and dates -> the kept tables that it describes."""
SPEEDS_PAGES = ["README.md", "python/docs/pages/does-it-pay.md"]
ROWS = {
    "BERT": "bert",
    "DenseNet with gradient checkpointing": "torchvision-densenet_checkpointed",
    "Swin transformer": "timm-swin",
    "eight dropouts in a row": "dropout_heavy",
    "graph network (gather, scatter)": "gnn_scatter",
    "two small models in turns (GAN)": "gan",
    "vision transformer": "vit",
}
"""Row of that table -> the file of its kept result."""
PUBLISHED = "published models, geometric mean (lowest)"
"""The row of all published models."""
_REDUCE, _GLOO = "all-reduce of {bytes:bytes}, ", " | {share.value:.3f} | {gloo.value:.2f}"
_SEND = "{operation} over one connection, 4 x 250 Mbit/s | NCCL's sockets"
NETWORK = [
    (_REDUCE + "1 Gbit/s | Gloo" + _GLOO + " (equal)", "comm/rails", "comm-rails-1", 0),
    (_REDUCE + "1 Gbit/s | Gloo" + _GLOO, "comm/rails", "comm-rails-1", 4),
    (_REDUCE + "2 x 500 Mbit/s | Gloo over MPTCP" + _GLOO, "comm/rails", "comm-rails-2", 3),
    (_REDUCE + "4 x 250 Mbit/s | Gloo over MPTCP" + _GLOO, "comm/rails", "comm-rails-4", 0),
    (_REDUCE + "4 x 250 Mbit/s | Gloo over MPTCP" + _GLOO, "comm/rails", "comm-rails-4", 4),
    (_REDUCE + "200, 200, 100, 50 Mbit/s | Gloo over MPTCP" + _GLOO, "comm/rails", "comm-rails-uneven-64", 0),
    (_SEND + " | {share.value:.2f} | {nccl.value:.2f}", "nccl_net/pair", "nccl_net-rails-4", 0),
    (
        _SEND + ", one connection per interface | {share.value:.2f} | {nccl_per_rail.value:.2f} (equal)",
        "nccl_net/pair", "nccl_net-rails-4", 0,
    ),
    (
        "half a round trip of 64 KiB, one unshaped link | NCCL's sockets | - | {half_round_trip_us[2].value:.1f} us "
        "against {half_round_trip_us_nccl[2].value:.1f} us (slower)",
        "nccl_net/tables", "comm_nccl_net_pair", 0,
    ),
]  # fmt: skip
"""The rows of comm/README.md's table of speeds, without the case: (template, table, file, row of its kept result)."""
_VERSION = r"\d+\.\d+\.\d+|torch \d+\.\d+(?: to \d+\.\d+)?"
_FIGURE = re.compile(r"\d+\.\d+|\d+ ×")


@dataclass(frozen=True)
class MarkdownTable:
    path: str
    line: int
    titles: list[str]
    rows: list[list[str]]


def markdown_tables(path: str, text: str) -> Iterator[MarkdownTable]:
    """Yields the tables of a document, outside of code blocks."""
    blank = re.sub(r"^```.*?^```", lambda block: re.sub(r"[^\n]", "", block[0]), text, flags=re.M | re.S)
    for found in re.finditer(r"(?:^\|.*\n)+", blank, re.M):
        titles, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in found[0].splitlines())
        yield MarkdownTable(path, blank.count("\n", 0, found.start()) + 1, titles, rows)


def figures(cell: str) -> list[str]:
    return _FIGURE.findall(re.sub(rf"`[^`]*`|{_VERSION}", "", cell))


@functools.cache
def kept() -> dict[str, Table]:
    return results.tables(results.FOLDER)


def sourced_figures(label: str) -> list[list[str]] | None:
    """The figures that a row of README.md's table must have, by column; None for an unknown row."""
    ways = ("inductor", "agspeed")
    if label in ROWS:
        rows = [
            kept()[name].rows[ROWS[label]] for names in MODELS for name in names if ROWS[label] in kept()[name].rows
        ]
        return [[f"{row[way].value:.2f}"] for [row] in rows for way in ways]
    published = [kept()[name] for _, name in MODELS]
    if label != PUBLISHED:
        return None
    columns = [table.columns[way] for table in published for way in ways]
    return [[f"{each.value:.2f}" for each in (column.mean, column.lowest)] for column in columns]


def test_the_pages_of_results_are_current() -> None:
    stale = [results.difference(path, text) for path, text in results.pages(results.FOLDER).items()]
    assert stale == [None] * len(results.PAGES), "\n" + "\n".join(filter(None, stale))


def test_every_figure_in_a_readmes_table_has_a_source() -> None:
    found = []
    for path in (path for path in sources.tracked() if path.endswith("README.md")):
        for table in markdown_tables(path, sources.read(path)):
            is_speeds = path == "README.md" and table.titles[0].startswith(SPEEDS)
            if (path, table.titles[0]) not in COMPARED and not is_speeds:
                with_figures = [row[0] for row in table.rows if any(map(figures, row))]
                found += [f"{path}:{table.line}: no source has the figures of {label!r}" for label in with_figures]
    assert not found, "\n" + "\n".join(found) + "\nkeep a result, or name in COMPARED the test that owns the figures"


@pytest.mark.parametrize(("table", "test"), COMPARED.items())
def test_the_test_that_owns_figures_names_their_readme(table: tuple[str, str], test: str) -> None:
    path, title = table
    assert title in [each.titles[0] for each in markdown_tables(path, sources.read(path))]
    assert path in sources.read(test)


@pytest.mark.parametrize("path", SPEEDS_PAGES)
def test_speeds_are_those_of_the_kept_results(path: str) -> None:
    tables = markdown_tables(path, sources.read(path))
    [table] = [table for table in tables if table.titles[0].startswith(SPEEDS)]
    wrong = [
        f"{path}:{table.line}: {row} should have the figures {sourced_figures(row[0])}"
        for row in table.rows
        if [figures(cell) for cell in row[1:]] != sourced_figures(row[0])
    ]
    assert not wrong, "\n" + "\n".join(wrong)
    assert set(ROWS) <= {row[0] for row in table.rows}


@pytest.mark.parametrize("path", SPEEDS_PAGES)
def test_machines_and_dates_of_the_speeds_are_named(path: str) -> None:
    text = " ".join(sources.read(path).split())
    for subject, names in MEASURED.items():
        facts = [kept()[name].facts for name in names]
        [(cpu, isa)] = {(each["machine"][0], each["machine"][1].replace("AVX512", "AVX-512")) for each in facts}
        cpu = re.sub(r"\(R\)| Processor", "", cpu)
        dates = " and ".join(sorted({result["date"] for name in names for result in kept()[name].results.values()}))
        assert f"{subject} were measured on an {cpu} with 2 cores and {isa}, {dates}." in text
    [torch] = {kept()[name].facts["torch"] for names in MODELS for name in names}
    assert f"All values have torch {torch}," in text
    numbers = [len(kept()[name].rows) for _, name in MODELS]
    assert "of the published models has {} with all cores and {} with 1 thread".format(*numbers) in text


def means(table: Table) -> tuple[str, str]:
    """The geometric means of agspeed and of Inductor."""
    ours, inductors = (f"{table.columns[way].mean.value:.2f}" for way in ("agspeed", "inductor"))
    return ours, inductors


def test_the_readmes_first_sentence_has_the_means_of_the_kept_results() -> None:
    all_cores, one_thread = (kept()[name] for _, name in MODELS)
    ours, inductors = means(all_cores)
    text = " ".join(sources.read("README.md").split())
    assert f"{ours} times eager's speed over {len(all_cores.rows)} published models" in text
    assert f"against {inductors} times with `torch.compile`" in text
    ours, inductors = means(one_thread)
    assert f"over {len(one_thread.rows)} models, they are {ours} and {inductors} times" in text


def test_the_networks_speeds_are_those_of_the_kept_results() -> None:
    text = sources.read("comm/README.md")
    [table] = [table for table in markdown_tables("comm/README.md", text) if table.titles[0] == "operation"]
    expected = []
    for template, name, file, at in NETWORK:
        result = kept()[name].results[file]
        row = values.expand(template, kept()[name].rows[file][at])
        expected.append(f"{row} | `{result.get('case') or result['program']}`")
        assert result["date"] in text and result["machine"]["cpu"] in text
    assert [" | ".join(row) for row in table.rows] == expected


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("1.50 × (slower than `torch.compile`)", ["1.50"]),
        ("3 × as fast", ["3 ×"]),
        ("torch 2.11 to 2.15, 2.12.1 and `1.0 %` in 20 s", []),
        ("1 / 3 / 0.75 / 0.75", ["0.75", "0.75"]),
    ],
)
def test_a_figure_is_a_number_with_decimals_or_times(cell: str, found: list[str]) -> None:
    assert figures(cell) == found


def test_a_table_in_a_code_block_is_no_table() -> None:
    text = "a\n\n```\n| x |\n|---|\n| 1.5 |\n```\n\n| y |\n|---|\n| 2.5 |\n"
    assert list(markdown_tables("a.md", text)) == [MarkdownTable("a.md", 9, ["y"], [["2.5"]])]

# SPDX-License-Identifier: Apache-2.0
"""`agspeed comm bench`: ranks that it or torchrun starts, the rows and the page that it makes, and wrong arguments."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from agspeed.reporting.html import bench_page
from tests.python.launch.jobs import Job, wait_until

needs_native = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=600, env=env)


@pytest.mark.slow
@needs_native
def test_ranks_on_this_host(tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    options = ["--collectives=all", "--algorithms=all", "--sizes=4K,1M", "--seconds=0.01", f"--html={page}", "--json"]
    found = run("agspeed", "comm", "bench", "--ranks=2", *options)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    rows = document["rows"]
    assert (document["ranks"], document["backend"]) == (2, "agspeed")
    assert document["command"].endswith(shlex.join(["-m", "agspeed", "comm", "bench", "--ranks=2", *options]))
    assert {row["collective"] for row in rows} >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather"}
    assert {row["algorithm"] for row in rows if row["collective"] == "all_reduce"} >= {"auto", "exchange", "ring"}
    assert all(row["is_correct"] and row["microseconds"] > 0 for row in rows)
    for row in rows:
        factor = {"all_reduce": 1.0, "broadcast": 1.0, "reduce": 1.0}.get(row["collective"], 0.5)
        speed = row["bytes"] / row["microseconds"] / 1e3
        assert row["algorithm_gbytes_per_s"] == pytest.approx(speed)
        assert row["bus_gbytes_per_s"] == pytest.approx(factor * speed)
    assert "<svg" in page.read_text()


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_the_command_that_started_them(tmp_path: Path, number: int) -> None:
    with Job(tmp_path) as job:
        command = [sys.executable, "-m", "agspeed", "comm", "bench", "--ranks=2", "--sizes=4K", "--seconds=600"]
        job.launcher = subprocess.Popen(command, env=job.environment, stdout=subprocess.PIPE)
        wait_until(lambda: len(job.left()) >= 4, "the command, what keeps the ranks, and two ranks run")
        job.launcher.send_signal(number)
        wait_until(lambda: not job.left(), "nothing is left")


@needs_native
@pytest.mark.thorough
def test_against_another_backend() -> None:
    found = run("agspeed", "comm", "bench", "--ranks=2", "--against=gloo", "--sizes=64K", "--seconds=0.01", "--json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["against"] == "gloo"
    assert all(row["is_correct"] and row["against_microseconds"] > 0 for row in document["rows"])
    shown = run("agspeed", "comm", "bench", "--ranks=2", "--against=gloo", "--sizes=64K", "--seconds=0.01")
    titles, row = shown.stdout.splitlines()[:2]
    assert titles.split()[-2:] == ["gloo", "speed-up"] and row.endswith("x")


@pytest.mark.slow
@needs_native
def test_ranks_of_torchrun() -> None:
    options = ["--sizes=64K", "--seconds=0.01", "--link-rate=10gbit", "--dtype=bfloat16"]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    found = run(*launcher, "agspeed", "comm", "bench", *options, AGSPEED_SOCKET_IFNAME="lo")
    assert found.returncode == 0, found.stderr
    titles, row = found.stdout.strip().splitlines()
    assert titles.split()[:4] == ["collective", "algorithm", "size", "time"] and titles.endswith("of the link")
    assert row.split()[:4] == ["all_reduce", "auto", "64.0", "KiB"] and row.endswith("%")


@needs_native
@pytest.mark.thorough
def test_rails_are_named_with_their_shares_and_what_they_can_carry() -> None:
    options = ["--ranks=2", "--sizes=64K,1M", "--seconds=0.01", "--link-rate=8gbit"]
    variables = {"AGSPEED_SHARED_MEMORY": "0", "AGSPEED_SOCKET_IFNAME": "lo", "AGSPEED_FLOWS_PER_INTERFACE": "2"}
    found = run("agspeed", "comm", "bench", *options, **variables)
    assert found.returncode == 0, found.stderr
    titles, rail = found.stdout.splitlines()[-2:]
    assert titles == "Rails of rank 0, all_reduce of 1.0 MiB:"
    assert rail.split()[:3] == ["lo", "127.0.0.1", "100"] and rail.endswith("of the 8,000 that it carries")
    [row] = json.loads(run("agspeed", "comm", "bench", *options[:1], "--sizes=1M", "--json", **variables).stdout)[
        "rows"
    ]
    [use] = row["rails"]
    assert (use["interface"], use["share"]) == ("lo", 1.0)
    # Equal, because between two ranks every collective is an exchange.
    assert use["gbytes_per_s"] == pytest.approx(row["bus_gbytes_per_s"], rel=0.2)


@pytest.mark.slow
@needs_native
def test_codecs_are_compared_on_gradients_of_a_file(tmp_path: Path) -> None:
    file, page = tmp_path / "gradients-{rank}.pt", tmp_path / "codecs.html"
    for rank in range(2):
        torch.manual_seed(rank)
        torch.save({"a": torch.randn(96, 64), "b": [torch.randn(64)]}, str(file).format(rank=rank))
    options = ["--codec=int8,topk", f"--gradients={file}", "--seconds=0.01", "--json", f"--html={page}"]
    found = run("agspeed", "comm", "bench", "--ranks=2", *options)
    assert found.returncode == 0, found.stderr
    int8, topk = json.loads(found.stdout)["codecs"]
    assert int8["codec"].startswith("int8(") and topk["codec"].startswith("topk(")
    for row in (int8, topk):
        assert row["bytes"] == 4 * (96 * 64 + 64)
        assert row["microseconds"] > 0 and row["dense_microseconds"] > 0
    assert int8["ratio"] == pytest.approx(4 * 256 / 260, rel=0.1)  # each rank's part ends in a block that is not full
    assert 0 < int8["step_error"] < 0.02
    assert topk["sum_error"] < topk["step_error"] < 1
    assert "topk(density=0.01" in page.read_text()


@needs_native
@pytest.mark.thorough
def test_all_codecs_are_shown_with_built_in_gradients() -> None:
    found = run("agspeed", "comm", "bench", "--ranks=2", "--codec=all", "--seconds=0.01")
    assert found.returncode == 0, found.stderr
    titles, *rows = found.stdout.strip().splitlines()
    assert titles.split()[:3] == ["codec", "gradients", "ratio"]
    assert [row.split("(")[0].split()[0] for row in rows] == ["fp16", "bf16", "int8", "topk", "powersgd"]


def test_the_help_has_a_whole_line_for_torchrun(agspeed: Any) -> None:
    text = " ".join(agspeed("comm", "bench", "--help").out.split())
    line = "torchrun --nnodes 4 --nproc-per-node 1 --node-rank N --master-addr node0 --master-port 29500"
    assert f"{line} \\ -m agspeed comm bench" in text and "..." not in text.split("examples:")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "words"),
    [("--backend=carrier-pigeon", "this torch has no such backend"), ("--sizes=4096G", "2 ranks need")],
)
def test_what_cannot_be_timed_is_said_once(option: str, words: str) -> None:
    found = run("agspeed", "comm", "bench", "--ranks=2", option)
    assert found.returncode == 2 and found.stderr.count(words) == 1, found.stderr


@pytest.mark.thorough
def test_other_backends_can_be_timed() -> None:
    found = run("agspeed", "comm", "bench", "--ranks=2", "--backend=gloo", "--sizes=4K", "--seconds=0.01")
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "add --ranks 4"),
        (["--ranks", "1"], "--ranks 1: write a number from 2 to 256"),
        (["--ranks", "2", "--sizes", "12Q"], "--sizes 12Q"),
        (["--ranks", "2", "--sizes", "0"], "--sizes 0"),
        (["--ranks", "2", "--link-rate", "fast"], "--link-rate fast"),
        (["--ranks", "2", "--link-rate", "1gbit,"], "--link-rate : write it like"),
        (["--ranks", "2", "--link-rate", "infgbit"], "--link-rate infgbit"),
        (["--ranks", "2", "--seconds", "0"], "--seconds 0"),
        (["--ranks", "2", "--seconds", "inf"], "--seconds inf"),
        (["--ranks", "2", "--seconds", "nan"], "--seconds nan"),
        (["--ranks", "2", "--html", "plot.svg"], "--html plot.svg"),
        (["--ranks", "2", "--html", "no/such/plot.html"], "there is no folder no/such"),
        (["--ranks", "2", "--sizes", "1M:1K"], "write the smaller size first"),
        (["--ranks", "2", "--backend", "gloo", "--algorithms", "ring"], "only backend agspeed"),
        (["--ranks", "2", "--against", "agspeed"], "that is the backend itself"),
        (["--ranks", "2", "--codec", "zip"], "--codec zip: use fp16, bf16, int8, topk, powersgd, or all"),
        (["--ranks", "2", "--gradients", "x.pt"], "--gradients x.pt: name codecs to try on it"),
        (["--ranks", "2", "--codec", "all", "--gradients", "x.pt"], "--gradients x.pt: torch cannot load it"),
    ],
)
def test_mistakes_are_one_sentence(
    agspeed: Any, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    result = agspeed("comm", "bench", *options)
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


@needs_native
def test_an_unknown_collective_ends_all_ranks() -> None:
    found = run("agspeed", "comm", "bench", "--ranks=2", "--collectives=all_redcue")
    assert found.returncode == 2 and "all_redcue: use all_reduce, all_gather" in found.stderr


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_draws_every_algorithm_and_fetches_nothing() -> None:
    rows = [
        {
            "collective": "all_reduce",
            "algorithm": algorithm,
            "bytes": 4**power,
            "microseconds": 10.0 + 4**power / 500,
            "algorithm_gbytes_per_s": speed,
            "bus_gbytes_per_s": speed,
            "is_correct": True,
        }
        for algorithm in ("auto", "<direct>")
        for power, speed in ((5, 0.01), (8, 0.4), (12, 2.5))
    ]
    document = {
        "backend": "agspeed",
        "ranks": 4,
        "dtype": "float32",
        "created_at": "2026-01-01T00:00:00+00:00",
        "versions": {"agspeed": "0.1.0", "torch": "2.11.0"},
        "machine": {"cpu": "a processor"},
        "command": "agspeed comm bench",
        "link_gbytes_per_s": 3.0,
        "rows": rows,
    }
    page = bench_page.render(document)
    tags = _Tags()
    tags.feed(page)
    assert tags.found.count("svg") == 3 and tags.found.count("polyline") == 2 * 3
    assert tags.found.count("circle") == len(rows) * 3 and "direct" not in tags.found
    assert tags.addresses == ["data:,"] and "script" not in tags.found
    assert "the link" in page and "&lt;direct&gt;, 16.0 MiB: 2.500 GB/s" in page

# SPDX-License-Identifier: Apache-2.0
"""The benchmark of agspeed.horovod: gradient sets, rows from known blocks, and one small run of each part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agspeed import native, netbed
from benchmarks import cases, cells, table
from benchmarks.comm import network, sides, sizes
from benchmarks.comm.blocks import Block
from benchmarks.horovod import gradient_sets, memory, negotiation, step
from benchmarks.kinds import horovod
from tests.lint import sources
from tests.python.support.benchmark_results import SCHEMA, result_of
from tests.python.support.pairs import first_of

MIB = 1 << 20
PUBLISHED = {"inception": 23.8e6, "resnet101": 44.5e6, "vgg16": 138.4e6, "transformer_xl": 257e6}


def block(*seconds: float) -> Block:
    return Block(100.0, list(seconds), [0.2, 0.4])


def cell(**parts: Any) -> dict[str, Any]:
    head = {"case": "horovod/x", "kind": "horovod", "stresses": "", "threads": 2, "wall_seconds": 1.0}
    where = {"hosts": 2, "ranks": 2, "rates": [["2gbit"]] * 2, "failed": {}, "stream": {"bits_per_second": [1.9e9]}}
    return head | horovod.summarize({}, [where | parts])


def test_gradient_sets_have_the_parameters_of_their_models() -> None:
    assert gradient_sets.names() == list(PUBLISHED)
    for name, count in PUBLISHED.items():
        layers = gradient_sets.load(name)
        assert gradient_sets.num_bytes(layers) == pytest.approx(4 * count, rel=0.002), name
        assert sum(share for _, share in layers) == pytest.approx(1)
    with pytest.raises(ValueError, match="unknown gradient set 'alexnet'; known: inception"):
        gradient_sets.load("alexnet")


def test_every_case_is_within_the_limit_and_names_what_there_is() -> None:
    for case in cases.select([], "horovod"):
        network.build(case)
        assert case["part"] in horovod.PARTS
        assert [sides.find(name).name for name in case["sides"]] == case["sides"]
        assert case.get("set", "vgg16") in PUBLISHED
        assert case.get("bucket_mb", {}).keys() <= set(case["sides"])
        assert sizes.parse(case.get("bytes", "4B"))


def test_a_step_stands_beside_horovods_and_a_step_alone() -> None:
    found = {
        "agspeed": [block(1.9, 1.9)],
        "control": [block(1.9, 1.9)],
        "horovod": [block(2.0, 2.0)],
        "gloo": [block(3.0, 4.0)],
    }
    rows = {name: step.row(name, found, alone=1.5, fluid=1.0) for name in found}
    assert rows["gloo"]["ratio"]["low"] == pytest.approx(1.5) and rows["gloo"]["ratio"]["high"] == pytest.approx(2.0)
    assert rows["gloo"]["over"] == "horovod" and rows["control"]["over"] == "agspeed"
    assert rows["agspeed"]["ratio"]["value"] == pytest.approx(0.95)
    assert rows["horovod"]["efficiency"]["value"] == pytest.approx(0.75)
    assert rows["horovod"]["cpu_seconds"] == pytest.approx(0.15)
    described = {"set": "vgg16", "bytes": 8 * 10**6, "communication_per_compute": 1.0, "compute_seconds": 1.5}
    described |= {"alone_seconds": 1.5, "fluid_seconds": 1.0}
    taken = [{**described, "side": name, "bucket_mb": 5 * (name == "gloo"), **row} for name, row in rows.items()]
    result = result_of(cell(optimizer_steps=taken))
    jsonschema.validate(result, SCHEMA)
    text = table.render(result)
    assert "| vgg16, 8 MB | 1 | gloo, 5 MB | 3.500 s | 1.750 (1.500 to 2.000) of horovod |" in text
    assert "| vgg16, 8 MB | 1 | horovod | 2.000 s | 1 | 0.750 (0.750 to 0.750) |" in text


def test_operations_stand_beside_others_and_the_control_judges() -> None:
    ours, slower = [block(*[0.01] * 8)] * 2, [block(*[0.05] * 8)] * 2
    described = {"tensors": 1000, "bytes": 4096, "way": "named"}
    rows = [
        {**described, "side": "agspeed", **negotiation.row(ours, ours, "agspeed named")},
        {**described, "side": "control", **negotiation.row(ours, ours, "agspeed named")},
        {**described, "side": "horovod-unfused", **negotiation.row(slower, ours, "agspeed named")},
    ]
    result = result_of(cell(negotiations=rows))
    jsonschema.validate(result, SCHEMA)
    text = table.render(result)
    assert "| 1000 x 4 KiB | agspeed named | 10.000 (10.000 to 10.000) | 1 |" in text
    assert "| horovod-unfused named | 50.000 (50.000 to 50.000) | 5.000 (5.000 to 5.000) of agspeed named |" in text
    rows[1] |= negotiation.row(slower, ours, "agspeed named")
    assert cell(negotiations=rows)["reason"] == "agspeed against agspeed read 5.000"


def test_growth_is_that_of_the_rank_that_grew_most() -> None:
    held = {"fusion_buffers": 2, "fusion_buffer_bytes": MIB, "max_fusion_buffer_bytes": MIB}
    readings = [
        [{"resident_bytes": 100 * MIB, **held}, {"resident_bytes": 200 * MIB, **held}],
        [{"resident_bytes": 103 * MIB, **held}, {"resident_bytes": 201 * MIB, **held}],
    ]
    row = memory.row(readings, 1000)
    assert row["growth"] == pytest.approx(0.03) and row["resident_mib"] == [200, 201] and row["steps"] == 1000
    result = result_of(cell(memories=[{"side": "agspeed", **row}]))
    jsonschema.validate(result, SCHEMA)
    assert "| 1,000 | 200.0 201.0 | +3.00% | 2, 1.00 MiB, at most 1.00 |" in table.render(result)


TINY: dict[str, dict[str, Any]] = {
    "memory": {"hosts": 1, "ranks_per_host": 2, "rates": ["unshaped"], "sides": ["agspeed"]}
    | {"layers": [[1, "256KiB"], [4, "4KiB"]], "steps": 200},
    "negotiation": {"hosts": 1, "ranks_per_host": 2, "rates": ["unshaped"], "bytes": "4KiB", "grouped": 20, "fused": 40}
    | {"sides": ["agspeed", "control", "horovod-unfused"]},
    "step": {"hosts": 2, "rates": ["2gbit"], "sides": ["agspeed", "horovod"], "set": "inception"}
    | {"bucket_mb": {"agspeed": [0]}, "communication_per_compute": [1.0], "steps": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("part", first_of(sorted(TINY), 1))
def test_a_small_run_of_each_part(part: str, tmp_path: Path) -> None:
    if reason := netbed.unavailable():
        pytest.skip(reason)
    case = {"name": f"horovod/{part}", "kind": "horovod", "part": part, "stresses": "", "seconds": 0, **TINY[part]}
    settings: dict[str, Any] = {"candidates": [], "limits": {}, "settle_seconds": 1, "steps": 0}
    settings |= {"sizes": [], "seconds": 0.0, "sides": None}
    found = cells.run([case], [1], settings, "test", None, tmp_path / "out.json")
    jsonschema.validate(found, SCHEMA)
    [measured] = found["cells"]
    assert measured["status"] in ("ok", "void") and not measured["failed"], json.dumps(measured, indent=1)
    assert measured["status"] == "ok" or "agspeed against agspeed" in measured["reason"]  # on a busy machine
    assert f"horovod/{part}" in table.render(found)


@pytest.mark.slow  # every rank loads torch
@pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
@pytest.mark.parametrize("extra", [[], ["--fp16-allreduce"], ["--use-adasum"]], ids=str)
def test_the_synthetic_benchmark_tells_images_per_second(extra: list[str]) -> None:
    script = [sys.executable, "-m", "benchmarks.horovod.synthetic", "--model", "squeezenet1_1", "--batch-size", "2"]
    script += ["--image-size", "64", "--num-warmup-batches", "1", "--num-batches-per-iter", "2", "--num-iters", "2"]
    launcher = [sys.executable, "-m", "agspeed", "run", "-np", "2", "--as-horovod"]
    done = subprocess.run(
        [*launcher, *script, *extra],
        env=os.environ | {"PYTHONPATH": f"{sources.ROOT / 'python'}:{sources.ROOT}", "AGSPEED_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "squeezenet1_1, 2 ranks: " in done.stdout

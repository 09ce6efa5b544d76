# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the bytes of an exchange: contents of gradients, rows from known blocks, and one small run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

from agspeed import netbed
from agspeed.distributed import hooks
from benchmarks import cases, cells, table, workloads
from benchmarks.comm import network, sides, sizes
from benchmarks.exchange import contents, ranks, step
from benchmarks.exchange.step import Counted, Traffic
from benchmarks.exchange.transformer_xl import TransformerXl
from benchmarks.horovod import gradient_sets
from benchmarks.kinds import bytes as kind
from tests.python.support.benchmark_results import SCHEMA, result_of
from tests.python.support.pairs import first_of

MIB = 1 << 20
GLOO, OURS, CONTROL, CODED = ("gloo", ""), ("agspeed", ""), ("control", ""), ("agspeed-coded", "")
INT8 = ("agspeed-coded", "int8")


def counted(*seconds: float, traffic: Traffic, codes: tuple[int, int] = (0, 0)) -> Counted:
    """`traffic` is in MB."""
    in_bytes = [(sent * 10**6, received * 10**6) for sent, received in traffic]
    return Counted(100.0, list(seconds), [0.2, 0.4], in_bytes, codes)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_every_case_is_within_the_limit_and_names_what_there_is() -> None:
    for case in cases.select([], "bytes"):
        for row in kind.plan(case, 2, {}):
            network.build(case | row)
        assert [sides.find(name).name for name in case["sides"]] == case["sides"]
        assert case["bucket_mb"].keys() <= set(case["sides"])
        assert set(case["codecs"]) <= set(hooks.__all__)
        assert set(case["workloads"]) <= {*gradient_sets.names(), *workloads.names()}
        assert set(gradient_sets.names()) < set(case["workloads"])
        [size] = map(sizes.parse, case["sizes"])
        assert size < min(gradient_sets.num_bytes(gradient_sets.load(name)) for name in gradient_sets.names())


def test_each_network_has_a_process_of_its_own() -> None:
    [case] = cases.select(["bytes/four_hosts"], "bytes")
    assert kind.plan(case, 2, {}) == [{"rates": ["1gbit"]}, {"rates": ["200mbit"]}]
    assert cases.narrowed(case, ["vgg16"])["workloads"] == ["vgg16"]


def test_all_sides_are_dense_and_codecs_run_on_the_last_one_of_agspeed() -> None:
    assert step.ways(["gloo", "agspeed", "control", "agspeed-coded"], ["int8"]) == [GLOO, OURS, CONTROL, CODED, INT8]
    assert step.ways(["agspeed", "control"], ["topk"]) == [OURS, CONTROL, ("agspeed", "topk")]


def test_a_block_takes_about_a_second() -> None:
    assert [step.block_steps(seconds) for seconds in (9.0, 0.24, 0.01)] == [1, 4, 8]


# --- contents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, contents.PIECE, contents.PIECE + 1, 300_001])
@pytest.mark.parametrize("share", [1e-6, 0.03, 0.5, 0.99, 1.0])
def test_a_sample_has_evenly_spaced_pieces(count: int, share: float) -> None:
    found = contents.pieces(torch.arange(count), share)
    assert len(found) == contents.kept(count, share) and found[0] == 0
    if count <= contents.PIECE or share == 1.0:
        assert len(found) == count
        return
    assert len(found) == pytest.approx(share * count, abs=contents.PIECE)
    pieces = found.view(-1, contents.PIECE)
    assert bool((pieces.diff() == 1).all()) and int(found.max()) < count
    begins = pieces[:, 0].diff().tolist()
    assert not begins or (max(begins) - min(begins) <= 1 and int(found[-1]) == count - 1)


@pytest.mark.parametrize("name", gradient_sets.names())
def test_models_have_the_parameters_of_their_sets(name: str) -> None:
    with torch.device("meta"):
        model = contents.model_of(name)
    ordered = contents.in_order(name, model)
    shapes = [shape for layer in gradient_sets.shapes(name) for shape in layer]
    assert [tuple(parameter.shape) for parameter in ordered] == shapes
    assert 4 * sum(map(math.prod, shapes)) == gradient_sets.num_bytes(gradient_sets.load(name))
    assert len(set(map(id, ordered))) == len(ordered)
    with pytest.raises(ValueError, match=f"{name}: 2 parameters of the model do not have the shapes of its set"):
        contents.in_order(name, nn.Linear(3, 4))


def test_gradients_of_ranks_differ_and_files_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def backwards(name: str, count: int) -> Any:
        for rank in range(count):
            made.append(rank)
            yield [torch.full(shape, rank + 1.0) for layer in gradient_sets.shapes(name) for shape in layer]

    monkeypatch.setattr(contents, "_backwards", backwards)
    found = contents.write("inception", 2, MIB, tmp_path)
    assert found.bytes == gradient_sets.num_bytes(gradient_sets.load("inception"))
    assert MIB / 2 < found.exchanged_bytes < 2 * MIB
    assert [float(ranks.read(path).unique()) for path in found.files] == [1.0, 2.0]
    assert all(ranks.read(path).nbytes == found.exchanged_bytes for path in found.files)
    assert contents.write("inception", 2, MIB, tmp_path) == found and made == [0, 1]
    assert contents.write("inception", 2, 2 * MIB, tmp_path).exchanged_bytes > found.exchanged_bytes
    assert made == [0, 1, 0, 1]


def test_words_of_transformer_xl_have_gradients_in_all_of_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.exchange import transformer_xl

    monkeypatch.setattr(transformer_xl, "_LAYERS", 1)
    torch.manual_seed(0)
    model = TransformerXl()
    words = torch.tensor([[5, 19_999, 20_000, 39_999, 40_000, 199_999, 200_000, 267_734]])
    loss = model(words, words.roll(-1, 1))
    tails = sum(math.log(count) for count in (20_000, 160_000, 67_735))  # a quarter of the words is in each cluster
    assert loss.item() == pytest.approx(math.log(20_003) + tails / 4, rel=0.05)
    loss.backward()
    missing = [name for name, parameter in model.named_parameters() if not parameter.grad.count_nonzero()]
    assert not missing, missing


def test_words_to_come_do_not_matter() -> None:
    from benchmarks.exchange import transformer_xl

    torch.manual_seed(0)
    layer, places = transformer_xl._Layer(), transformer_xl._places(6)
    bias = [torch.randn(transformer_xl._HEADS, transformer_xl._HEAD_WIDTH) for _ in range(2)]
    hidden = torch.randn(1, 6, 1024)
    other = hidden.clone()
    other[:, 4:] = 1.0
    found, changed = (layer(each, places, *bias) for each in (hidden, other))
    torch.testing.assert_close(found[:, :4], changed[:, :4])
    assert not torch.allclose(found[:, 4:], changed[:, 4:])


# --- rows -------------------------------------------------------------------------------------------------------------


def blocks() -> dict[step.Way, list[Counted]]:
    return {
        GLOO: [
            counted(2.0, 2.0, traffic=[(200, 300), (400, 300)]),
            counted(2.2, 2.2, traffic=[(200, 300), (400, 300)]),
        ],
        OURS: [counted(1.0, 1.0, traffic=[(300, 300), (300, 300)])] * 2,
        CONTROL: [counted(1.01, 1.01, traffic=[(300, 300), (300, 300)])] * 2,
        CODED: [counted(0.8, 0.8, traffic=[(240, 240), (240, 240)], codes=(1000, 800))] * 2,
        INT8: [counted(0.5, 0.5, traffic=[(75, 60), (75, 90)])] * 2,
    }


def exchanges(num_bytes: int = 553_000_000) -> list[dict[str, Any]]:
    found = blocks()
    errors = {GLOO: 1e-8, OURS: 1e-8, CONTROL: 1e-8, CODED: 1e-8, INT8: 0.0123}
    opened = {"workload": "vgg16", "rates": "1gbit", "exchanged_mb": 55.3}
    return [
        step.scaled(
            opened | {"bucket_mb": 100 if way == GLOO else 0, "error": errors[way]} | step.row(way, found), num_bytes
        )
        for way in found
    ]


def test_bytes_are_those_of_a_step_by_host_and_direction() -> None:
    gloo, ours, _, coded, int8 = exchanges()
    assert gloo["sent_mb"] == {"mean": 150, "most": 200} and gloo["received_mb"] == {"mean": 150, "most": 150}
    assert int8["sent_mb"] == {"mean": 37.5, "most": 37.5} and int8["received_mb"] == {"mean": 37.5, "most": 45}
    assert (ours["fewer_bytes"], coded["fewer_bytes"], int8["fewer_bytes"]) == (1.0, 1.25, 4.0)
    assert coded["values_per_code"] == 1.25 and ours["values_per_code"] is None


def test_a_sample_is_scaled_to_all_gradients() -> None:
    sample, whole = exchanges()[3], exchanges(0)[3]
    assert (sample["mb"], sample["scaled_sent_mb"], sample["scaled_seconds"]) == pytest.approx((553, 1200, 8))
    assert (whole["mb"], whole["scaled_sent_mb"], whole["scaled_seconds"]) == pytest.approx((55.3, 120, 0.8))


def test_ways_stand_beside_the_fastest_other_backend_and_the_control_beside_agspeed() -> None:
    gloo, ours, control, *_ = exchanges()
    assert {gloo["over"], ours["over"]} == {"gloo"} and control["over"] == "agspeed"
    assert gloo["speed"]["value"] == 1 and (ours["speed"]["low"], ours["speed"]["high"]) == (2.0, 2.2)
    assert control["speed"]["value"] == pytest.approx(1 / 1.01) and ours["steps"] == 4
    found = blocks()
    found["gloo-mptcp", ""] = [counted(1.5, 1.5, traffic=[(300, 300)] * 2)] * 2
    assert step.baseline(found) == ("gloo-mptcp", "")
    assert step.baseline({OURS: found[OURS], INT8: found[INT8]}) == OURS


def test_ways_that_did_not_run_as_they_should_are_refused() -> None:
    good = {GLOO: {"error": 1e-8}, OURS: {"error": 1e-8}, INT8: {"error": 0.01}}
    step.check(good)
    with pytest.raises(RuntimeError, match=r"gloo: the relative error of the first step is 0\.5"):
        step.check(good | {GLOO: {"error": 0.5}})
    with pytest.raises(RuntimeError, match="agspeed-coded int8: the relative error of the first step is 1e-08"):
        step.check(good | {INT8: {"error": 1e-8}})


def test_bits_that_differ_are_refused() -> None:
    good = {GLOO: {"a"}, OURS: {"b"}, CONTROL: {"b"}, CODED: {"b"}, INT8: {"c"}}
    step.check_bits(good)
    with pytest.raises(RuntimeError, match="agspeed, control, agspeed-coded: gradients differ after the last step"):
        step.check_bits(good | {CODED: {"d"}})
    with pytest.raises(RuntimeError, match=r"^agspeed-coded int8: gradients differ after the last step"):
        step.check_bits(good | {INT8: {"c", "d"}})


def cell(rows: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"case": "bytes/x", "kind": "bytes", "stresses": "", "threads": 2, "wall_seconds": 1.0}
    where = {"hosts": 2, "ranks": 2, "rates": [["1gbit"]] * 2, "failed": {"gloo-mptcp": "Traceback\nOSError: no"}}
    stream = {"bits_per_second": [9.5e8], "share": 0.99, "cpu_seconds_per_gb": 0.43}
    return head | kind.summarize({}, [where | {"stream": stream, "exchanges": rows}])


def test_the_table_shows_bytes_seconds_and_errors() -> None:
    rows = exchanges()
    whole = [exchanges(0)[-1] | {"workload": "char_gpt"}]
    found = result_of(cell(rows + whole))
    jsonschema.validate(found, SCHEMA)
    text = table.render(found)
    amount = "| vgg16 | 55.3 of 553 MB | 1gbit |"
    assert f"{amount} gloo (baseline), buckets of 100 MB | 150 (200) | 150 (150) | 1.00 | 2.1 | 1500, 21 |" in text
    assert f"{amount} control, of agspeed | 150 (150) | 150 (150) | 1.00 | 1.01 |" in text
    assert (
        f"{amount} agspeed-coded | 120 (120) | 120 (120) | 1.25 | 0.8 | 1200, 8 | 2.62 (2.50 to 2.75) | 1e-08 |" in text
    )
    assert f"{amount} agspeed-coded int8 | 37.5 (37.5) | 37.5 (45) | 4.00 | 0.5 | 375, 5 |" in text
    assert (
        "| char_gpt | all 55.3 MB | 1gbit | agspeed-coded int8 | 37.5 (37.5) | 37.5 (45) | 4.00 | 0.5 | 37.5, 0.5 |"
        in text
    )
    assert "| bytes/x | 2, 2 | 1gbit | 0.95 Gbit/s, 0.990 | 0.43 s |" in text and "`losses`" in text
    assert "- bytes/x, gloo-mptcp: **failed**, OSError: no" in text


def test_a_control_off_the_mark_voids_the_cell() -> None:
    rows = exchanges()
    rows[2]["speed"]["value"] = 1.06
    assert cell(rows)["reason"] == "agspeed against agspeed read 1.060 (vgg16, 1gbit)"
    rows[2]["speed"]["value"] = 0.96
    assert cell(rows)["status"] == "ok"


# --- a small run ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workload", first_of(["char_gpt", "inception"], 1))
def test_a_small_run(workload: str, tmp_path: Path) -> None:
    if reason := netbed.unavailable():
        pytest.skip(reason)
    [case] = cases.select(["bytes/four_hosts"], "bytes")
    case |= {"hosts": 2, "networks": [["200mbit"]], "workloads": [workload], "sizes": ["2MiB"], "seconds": 0}
    settings: dict[str, Any] = {"candidates": [], "limits": {}, "settle_seconds": 1, "steps": 0}
    settings |= {"sizes": [], "seconds": 0.0, "sides": None}
    found = cells.run([case], [1], settings, "test", None, tmp_path / "out.json")
    jsonschema.validate(found, SCHEMA)
    [measured] = found["cells"]
    assert measured["status"] == "ok" or "agspeed against agspeed" in measured["reason"], json.dumps(measured, indent=1)
    assert not measured["networks"][0]["failed"], json.dumps(measured["networks"], indent=1)
    rows = {row["way"]: row for row in measured["exchanges"]}
    print(json.dumps({way: (row["sent_mb"], row["values_per_code"]) for way, row in rows.items()}))
    assert list(rows) == ["gloo", "agspeed", "control", "agspeed-coded", "agspeed-coded int8", "agspeed-coded topk"]
    sent = {way: row["sent_mb"]["mean"] / row["exchanged_mb"] for way, row in rows.items()}
    for way in ("gloo", "agspeed", "control"):  # two hosts send each other the gradients once
        assert 1.0 < sent[way] < 1.25 and 1.0 < rows[way]["received_mb"]["mean"] / rows[way]["exchanged_mb"] < 1.25, way
    assert rows["agspeed-coded"]["values_per_code"] > 1.05 and sent["agspeed-coded"] < sent["agspeed"]
    assert 0.2 < sent["agspeed-coded int8"] < 0.35 and sent["agspeed-coded topk"] < 0.08
    assert ranks._CODECS.keys() == set(case["codecs"])

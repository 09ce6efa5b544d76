# SPDX-License-Identifier: Apache-2.0
"""`auto` sends by a codec where that shortens training steps, and by the same choice at all ranks."""

from __future__ import annotations

import math
import pickle
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from agspeed.distributed.codecs import auto, driver
from agspeed.distributed.codecs.auto import Auto
from agspeed.distributed.codecs.codec import Pending, average_densely
from agspeed.distributed.codecs.estimate import COSTS, Measured, decided
from agspeed.errors import UserError
from tests.python.distributed.codecs import auto_cases as cases
from tests.python.distributed.codecs.local_group import bucket
from tests.python.distributed.ranks import Ranks

COUNT = 1 << 16
SETTLED = 40
"""Steps after which all measurements have ended."""


def measured(dense: float, computes: dict[str, float], errors: dict[str, float], latency: float = 1e-4) -> Measured:
    return Measured(latency, dense, tuple(computes[name] for name in COSTS), tuple(errors[name] for name in COSTS))


SMALL = {"bf16": 0.002, "int8": 0.01}


@pytest.mark.parametrize(
    ("dense", "computes", "errors", "expected"),
    [
        (0.1, {"bf16": 0.001, "int8": 0.005}, SMALL, "int8"),
        (0.1, {"bf16": 0.001, "int8": 0.025}, SMALL, "bf16"),  # nearly as fast, with a smaller error
        (0.1, {"bf16": 0.001, "int8": 0.005}, {"bf16": 0.002, "int8": 0.06}, "bf16"),
        (0.1, {"bf16": 0.001, "int8": 0.005}, {"bf16": 0.06, "int8": 0.06}, ""),
        (0.01, {"bf16": 0.005, "int8": 0.009}, SMALL, ""),
        (0.1, {"bf16": math.inf, "int8": math.inf}, SMALL, ""),
        (0.0, {"bf16": 0.0, "int8": 0.0}, SMALL, ""),
    ],
)
def test_the_estimate_takes_the_codec_that_pays(
    dense: float, computes: dict[str, float], errors: dict[str, float], expected: str
) -> None:
    found = decided([measured(dense, computes, errors)], 0.05)
    assert found.codec == expected
    assert bool(found.why) != bool(expected)


def test_the_estimate_uses_the_fastest_network_and_the_slowest_processor() -> None:
    computes = {"bf16": 0.001, "int8": 0.001}
    fast = measured(0.1, computes, SMALL)
    waited = measured(0.9, computes, SMALL)
    busy = measured(0.1, dict.fromkeys(COSTS, 0.2), SMALL)
    assert decided([fast, waited], 0.05) == decided([fast, fast], 0.05)
    assert decided([fast, busy], 0.05).codec == ""
    assert Measured.of(busy.numbers()) == busy


class Network:
    """A wire of two ranks that do the same, and a clock that its operations and training steps move."""

    rank, size = 0, 2

    def __init__(self, bytes_per_s: float) -> None:
        self.now, self.bytes_per_s, self.num_dense = 0.0, bytes_per_s, 0

    def _after(self, num_bytes: float, result: torch.Tensor) -> Pending:
        def wait() -> torch.Tensor:
            self.now += 1e-4 + num_bytes / self.bytes_per_s
            return result

        return wait

    def all_reduce(self, values: torch.Tensor) -> Pending:
        return self._after(values.nbytes, values.mul_(self.size))

    def all_gather(self, values: torch.Tensor) -> Pending:
        return self._after(values.nbytes, torch.stack([values] * self.size))

    def all_to_all(self, rows: torch.Tensor) -> Pending:
        return self._after(rows.nbytes / 2, torch.stack([rows[0]] * self.size))


class Job:
    """Trains with one bucket on a network. `hidden`: the part of each exchange that the backward hides."""

    def __init__(self, bytes_per_s: float, monkeypatch: pytest.MonkeyPatch, hidden: float = 0.0) -> None:
        self.network, self.codec, self.hidden = Network(bytes_per_s), Auto(), hidden
        self.values = torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
        monkeypatch.setattr(auto, "time", types.SimpleNamespace(perf_counter=lambda: self.network.now))
        monkeypatch.setattr(Auto, "_tried", staticmethod(lambda codec, _bucket: (2e-4, SMALL[codec.name])))

    def step(self) -> bool:
        """Returns whether the step was dense."""
        network, whole = self.network, bucket(self.values)
        network.now += 0.005
        is_dense = self.codec.is_dense(whole)
        began = network.now
        steps = average_densely(whole.values, network) if is_dense else self.codec.steps(whole, network)
        driver.finish([driver.Run(steps, lambda: None)])
        network.now = max(began, network.now - self.hidden)
        return is_dense

    def run(self, steps: int) -> list[bool]:
        return [self.step() for _ in range(steps)]


def test_a_slow_network_gets_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(20e6, monkeypatch)
    job.run(SETTLED)
    assert not any(job.run(20))
    [row] = job.codec.report()
    assert row["sends"] == "int8"
    assert row["saved_bytes"] == round(4 * COUNT * (1 - 260 / 1024))
    assert row["step_s"][1] < row["step_s"][0]
    assert row["dense_s"] == pytest.approx(1e-4 + 4 * COUNT / 20e6)
    assert row["codec_s"]["int8"] < row["codec_s"]["bf16"] < row["dense_s"]
    assert job.codec.sentence().startswith(
        "auto sends 1 of 1 buckets as int8: 0.2 MiB less in each step, with a relative"
    )
    assert not job.codec.has_given_up()


def test_a_fast_network_stays_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(20e9, monkeypatch)
    found = job.run(SETTLED + 20)
    assert found.count(False) == 4  # three probes, and the exchange of their numbers
    assert job.codec.has_given_up()
    assert job.codec.sentence().startswith("gradients are sent densely by auto (")


def test_a_codec_that_does_not_shorten_the_step_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(20e6, monkeypatch, hidden=0.1)
    found = job.run(SETTLED + 20)
    assert found.count(False) == 4 + 16 + 1  # also two blocks of the trial, and the exchange of its times
    assert all(found[SETTLED:])
    [row] = job.codec.report()
    assert row["sends"] == "dense"
    assert row["why"].startswith("with int8, a step takes")
    assert row["saved_bytes"] == 0


def test_the_choice_follows_a_network_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_PERIOD", 60)
    job = Job(20e6, monkeypatch)
    job.run(SETTLED)
    job.network.bytes_per_s = 20e9
    job.run(60)
    assert all(job.run(10))


def test_small_buckets_and_half_precision_are_always_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(20e6, monkeypatch)
    for values in (torch.zeros(100), torch.zeros(COUNT, dtype=torch.bfloat16), torch.zeros(COUNT).double()):
        assert all(job.codec.is_dense(bucket(values)) for _ in range(10))
    assert job.codec.report() == []
    assert job.codec.has_given_up()


def test_a_bucket_with_nan_is_averaged_and_tries_no_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(20e6, monkeypatch)
    job.values[7] = torch.nan
    found = job.run(SETTLED)
    assert found.count(False) == 4
    assert job.codec.report()[0]["codec_s"] == {}


def test_buckets_that_are_divided_anew_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(20e6, monkeypatch)
    job.run(SETTLED)
    other = bucket(job.values, {"weight": COUNT - 10, "bias": 10})
    assert job.codec.is_dense(other)
    assert [row["parameters"] for row in job.codec.report()] == [["weight", "bias"]]


def test_auto_can_be_pickled_and_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(20e6, monkeypatch)
    job.run(SETTLED)
    again = pickle.loads(pickle.dumps(job.codec))
    assert again.describe() == job.codec.describe()
    assert again.report() == []
    with pytest.raises(UserError, match="max_error=0 is not valid"):
        Auto(max_error=0)


def test_errors_are_measured_on_the_gradients_themselves() -> None:
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
    own = Auto()
    for name, expected in (("bf16", 0.0017), ("int8", 0.009)):
        seconds, error = Auto._tried(own._codecs[name], bucket(values))
        assert seconds > 0
        assert error == pytest.approx(expected, rel=0.5), name


# --- between ranks ----------------------------------------------------------------------------------------------------

needs_ranks = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2, timeout_s=300) as started:
        yield started


def are_replicas(found: list[list[torch.Tensor]]) -> bool:
    return all(all(map(torch.equal, each, found[0])) for each in found)


@needs_ranks
@pytest.mark.parametrize("driven_by", ["ddp", "horovod"])
@pytest.mark.parametrize("pays", [True, False])
def test_ranks_choose_alike_and_stay_replicas(ranks: Ranks, tmp_path: Path, driven_by: str, pays: bool) -> None:
    found: list[dict[str, Any]] = ranks.run(getattr(cases, driven_by), tmp_path, pays=pays, steps=SETTLED + 10)
    assert are_replicas([each["weights"] for each in found])
    for each in found:
        assert {row["sends"] for row in each["report"]} <= ({"bf16", "int8"} if pays else {"dense"})
        assert [row["parameters"] for row in each["report"]] == [row["parameters"] for row in found[0]["report"]]
        assert [row["dense_s"] for row in each["report"]] == [row["dense_s"] for row in found[0]["report"]]
        assert each["error"] < 0.05
        assert each["has_given_up"] == (not pays)


@needs_ranks
def test_status_and_report_show_the_codec(ranks: Ranks, tmp_path: Path) -> None:
    for status, report, shown in ranks.run(cases.reported, tmp_path):
        assert "gradients are sent by int8(dense_below=4096)" in status
        assert report == {"name": "int8", "text": "gradients are sent by int8(dense_below=4096)", "buckets": []}
        assert "Codec: gradients are sent by int8(dense_below=4096)." in shown

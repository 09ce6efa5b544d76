# SPDX-License-Identifier: Apache-2.0
"""`cluster.report_progress` in a process of its own, with Trainer's server beside it, and its arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agspeed import cluster
from agspeed.cluster import trainer_status
from agspeed.cluster.trainer_status import Pace, TrainerStatus
from agspeed.errors import UserError, UserTypeError
from tests.python.cluster import trainer_server
from tests.python.cluster.trainer_server import TrainerServer, environment, token

_LIMIT_S = 120
_BEGIN = "import sys, threading\nfrom agspeed import cluster\n"
_END = '\nassert "torch" not in sys.modules\n'


@pytest.fixture
def pod(server: TrainerServer, tmp_path: Path) -> dict[str, str]:
    """The variables of a pod with one rank."""
    (tmp_path / "token").write_text(token())
    return {**environment(server, tmp_path / "token"), "RANK": "0", "WORLD_SIZE": "4"}


def run(script: str, variables: Mapping[str, str]) -> str:
    """Runs a script that imports no torch. Returns what it has printed on stderr."""
    names = ("PATH", "PYTHONPATH", "HOME")
    plain = {name: os.environ[name] for name in names if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + textwrap.dedent(script) + _END],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def metrics(status: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in status["metrics"]}


def test_the_last_step_is_reported_at_the_end(server: TrainerServer, pod: dict[str, str]) -> None:
    said = run(
        """
        for step in range(1000):
            cluster.report_progress(step + 1, 1000, metrics={"loss": 1 / (step + 3), "phase": "warm-up"})
        """,
        pod,
    )
    assert said == "" and 1 <= len(server.statuses) <= 2, (said, server.statuses)
    last = server.statuses[-1]
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    found = metrics(last)
    assert float(found.pop("steps_per_second")) > 0
    assert found == {
        "step": "1000", "num_steps": "1000", "world_size": "4", "loss": "0.000998004", "phase": "warm-up",
    }  # fmt: skip


def test_a_percentage_of_the_script_is_reported(server: TrainerServer, pod: dict[str, str]) -> None:
    run("cluster.report_progress(percentage=45.9, remaining_seconds=10.1)", pod)
    [status] = server.statuses
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (45, 11)
    assert metrics(status) == {"world_size": "4"}


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1", "WORLD_SIZE": "4", "PET_NODE_RANK": "0"},
        {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"},
        {"PET_NODE_RANK": "1", "PET_NNODES": "2"},
    ],
)
def test_other_ranks_report_nothing(variables: dict[str, str], server: TrainerServer, pod: dict[str, str]) -> None:
    script = 'cluster.report_progress(1, 2)\nassert threading.active_count() == 1, "a thread has begun"\n'
    run(script, {name: value for name, value in pod.items() if name.startswith("KUBEFLOW")} | variables)
    assert not server.answers


def test_a_process_outside_of_a_trainjob_starts_no_thread() -> None:
    run('cluster.report_progress(1, 2)\nassert threading.active_count() == 1, "a thread has begun"\n', {})


def test_a_refused_token_is_one_warning(server: TrainerServer, pod: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(secret := token(lasts_s=-1))
    said = run("for step in range(100): cluster.report_progress(step, 100)", pod)
    place = server.url.split("/")[2]
    expected = f"was not reported to {place}: the server answered 403: Forbidden. Training goes on."
    assert said.count("\n") == 1 and expected in said and secret not in said
    assert server.answers == [403]


def test_a_server_that_hangs_does_not_keep_a_process(server: TrainerServer, pod: dict[str, str]) -> None:
    server.is_slow.set()
    run("cluster.report_progress(1, 2)", pod)


def test_a_forked_process_reports_for_itself(server: TrainerServer, pod: dict[str, str]) -> None:
    run(
        """
        import os
        cluster.report_progress(percentage=1)
        child = os.fork()
        cluster.report_progress(percentage=2 if child else 3)
        if child:
            os.waitpid(child, 0)
        """,
        pod,
    )
    assert {1, 2, 3}.issuperset(found := [each["progressPercentage"] for each in server.statuses]) and 3 in found


def status_of(sent: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sent)["trainerStatus"]
    return found


class Kept:
    """In place of a reporter: keeps all texts."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []

    def put(self, text: bytes) -> None:
        self.texts.append(text)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    found = Kept()
    monkeypatch.setattr(trainer_status, "_reporter", lambda server: found)
    return found


@pytest.fixture
def status(server: TrainerServer, tmp_path: Path) -> TrainerStatus:
    return TrainerStatus(environment(server, tmp_path / "token"))


def test_values_that_a_call_leaves_out_stay(status: TrainerStatus, kept: Kept) -> None:
    status.report((10, 100), None, None, {"loss": "0.5"})
    status.report(None, None, None, {"accuracy": "0.9"})
    status.report((20, 100), None, 7, {"loss": "0.4"})
    status.report(None, 30, None, {})
    first, second, third, last = map(status_of, kept.texts)
    assert first["progressPercentage"] == second["progressPercentage"] == 10
    assert metrics(second) == {"step": "10", "num_steps": "100", "loss": "0.5", "accuracy": "0.9"}
    assert (third["progressPercentage"], third["estimatedRemainingSeconds"]) == (20, 7)
    assert metrics(third)["loss"] == "0.4" and metrics(third)["accuracy"] == "0.9"
    assert last["progressPercentage"] == 30 and "estimatedRemainingSeconds" not in last


def test_a_step_above_the_last_one_is_the_end(status: TrainerStatus, kept: Kept) -> None:
    status.report((120, 100), None, None, {})
    found = status_of(kept.texts[-1])
    assert (found["progressPercentage"], found["estimatedRemainingSeconds"]) == (100, 0)


def test_the_largest_status_fits_into_the_limits_of_the_server(
    status: TrainerStatus, kept: Kept, server: TrainerServer
) -> None:
    for each in range(2):
        names = [f"{each}{index:03}{chr(34) * 60}" for index in range(trainer_status.MOST_METRICS)]
        status.report((1, 2), None, None, dict.fromkeys(names, "\\" * 64))
    text = kept.texts[-1]
    code, found = server.judge(trainer_server.PATH, f"Bearer {token()}", text)
    assert code == 200, found


def test_the_speed_is_the_one_of_the_last_minute() -> None:
    pace = Pace()
    speeds = [pace.per_second(step, now) for step, now in ((0, 0.0), (1, 10.0), (2, 20.0))]
    assert speeds == [None, 0.1, 0.1]
    for second in range(21, 100):
        speed = pace.per_second(2 + 5 * (second - 20), float(second))
    assert speed == pytest.approx(5, rel=0.15)
    assert pace.per_second(7, 100.0) is None, "a job that goes on from a checkpoint begins anew"
    assert pace.per_second(9, 101.0) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"percentage": 100.5}, "percentage: 100.5 is not from 0 to 100."),
        ({"percentage": -1}, "percentage: -1 is not from 0 to 100."),
        ({"percentage": float("nan")}, "percentage: nan is not from 0 to 100."),
        ({"remaining_seconds": float("inf")}, "remaining_seconds: inf is not from 0 to 2147483647."),
        ({"step": 1}, "num_steps: it is missing beside step; the progress follows from both."),
        ({"num_steps": 1}, "step: it is missing beside num_steps; the progress follows from both."),
        ({"step": -1, "num_steps": 1}, "step -1 of num_steps 1: pass how many are done"),
        ({"step": 0, "num_steps": 0}, "step 0 of num_steps 0: pass how many are done"),
        ({"metrics": {"": 1}}, "metrics: a name cannot be ''; write 1 to 64 bytes that can be printed."),
        ({"metrics": {"ä" * 33: 1}}, "write 1 to 64 bytes"),
        ({"metrics": {"loss": "a\nb"}}, r"metrics: the value of loss cannot be 'a\nb'"),
        ({"metrics": {"loss": "\ud800"}}, "metrics: the value of loss cannot be"),
        ({"metrics": {str(number): 0 for number in range(201)}}, "metrics: there are 201, and a status has 200"),
    ],
)
def test_wrong_values_are_named(arguments: dict[str, Any], sentence: str) -> None:
    """Everywhere, so that a mistake shows before the job is in a cluster."""
    with pytest.raises(UserError) as raised:
        cluster.report_progress(**arguments)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"percentage": "45"}, "percentage: it is of the type str; pass a number."),
        ({"percentage": True}, "percentage: it is of the type bool; pass a number."),
        ({"step": 1.5, "num_steps": 2}, "step and num_steps are of the types float and int; pass whole numbers."),
        ({"metrics": {1: 2}}, "metrics: the name 1 is of the type int; pass a text."),
        ({"metrics": {"loss": [1]}}, "metrics: the value of loss is of the type list; pass a number or a text"),
    ],
)
def test_values_of_wrong_types_are_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserTypeError) as raised:
        cluster.report_progress(**arguments)
    assert sentence in str(raised.value)

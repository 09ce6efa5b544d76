# SPDX-License-Identifier: Apache-2.0
"""Jobs of two processes that hang: one command names the cause, and the job goes on once the cause is removed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agspeed import native
from agspeed.cli.main import main
from agspeed.inspection import points
from tests.python.distributed.ranks import Ranks
from tests.python.inspection import hangs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
_LIMIT_S = 120
_NOBODY = 65534


@pytest.fixture(scope="module", params=["shared memory", "rails"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    shares = str(int(request.param == "shared memory"))
    # A stopped process is lost after the peer timeout.
    with Ranks(2, timeout_s=300, AGSPEED_SHARED_MEMORY=shares, AGSPEED_PEER_TIMEOUT_MS="200000") as started:
        yield started


class _Hang:
    """A case that runs in the ranks. Leaving the context checks that both ranks got the right result."""

    def __init__(self, ranks: Ranks, folder: Path, case: Callable[..., list[float]], **arguments: str) -> None:
        self._ranks, self._go = ranks, folder / "go"
        self._results: list[Any] = []
        self._thread = threading.Thread(
            target=lambda: self._results.extend(ranks.run(case, folder, go=str(self._go), **arguments))
        )

    def __enter__(self) -> _Hang:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._go.touch()
        self._thread.join()
        if kind is None:
            assert self._results == [hangs.RIGHT, hangs.RIGHT]

    def makes_steps(self) -> None:
        """Waits until both ranks of `hangs.many_steps` have made a step, so that none of them is still joining."""
        end = time.monotonic() + _LIMIT_S
        while not all(Path(f"{self._go}-{rank}").exists() for rank in range(2)):
            assert time.monotonic() < end, f"the ranks made no step within {_LIMIT_S} s"
            time.sleep(0.01)

    def says(self, capsys: pytest.CaptureFixture[str], *parts: str) -> str:
        """Runs the command until its output has all parts. Returns that output."""
        end = time.monotonic() + _LIMIT_S
        while True:
            with contextlib.suppress(OSError):
                main(["comm", "inspect", str(self._ranks.pids[0])])
            out, err = capsys.readouterr()
            if all(part in out for part in parts):
                return out
            assert time.monotonic() < end, (
                f"not in the output: {[each for each in parts if each not in out]}\n{out}{err}"
            )
            time.sleep(0.05)


def test_a_rank_that_does_not_call(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _Hang(ranks, tmp_path, hangs.late_rank) as hang:
        out = hang.says(capsys, "Likely cause: Rank 1 has not started operation ", "hangs.py:", "in _wait_for")
    assert f"rank 0, process {ranks.pids[0]}" in out and f"rank 1, process {ranks.pids[1]}" in out
    assert "all_reduce(4 x f32, sum): in flight for " in out and "waits for rank 1; " in out and " of 32 B moved" in out
    assert "It has no operation in flight; all_reduce of group " in out


def test_a_rank_in_its_data_loader(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _Hang(ranks, tmp_path, hangs.data_loader) as hang:
        hang.says(capsys, "Likely cause: Rank 1 has not started operation ", "It is in its data loader: ")


def test_groups_in_different_orders(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _Hang(ranks, tmp_path, hangs.other_order) as hang:
        hang.says(
            capsys,
            "Likely cause: The ranks start their operations in different orders: rank 0 is in operation ",
            "and waits for rank 1; rank 1 is in operation ",
        )


def test_different_shapes(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _Hang(ranks, tmp_path, hangs.other_shape, store=str(tmp_path / "store")) as hang:
        hang.says(capsys, "Likely cause: Group '", "all_reduce(4 x f32, sum)", "all_reduce(5 x f32, sum)", "rank 1")


def test_a_stopped_process(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _Hang(ranks, tmp_path, hangs.many_steps) as hang:
        hang.makes_steps()
        os.kill(ranks.pids[1], signal.SIGSTOP)
        try:
            stopped = f"Likely cause: Rank 1 is stopped (process {ranks.pids[1]}): `kill -CONT {ranks.pids[1]}`"
            out = hang.says(capsys, stopped, "waits for rank 1")
        finally:
            os.kill(ranks.pids[1], signal.SIGCONT)
    assert f"did not answer within {points.TIMEOUT_S:g} s" in out


def test_a_rank_that_does_not_join(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _Hang(ranks, tmp_path, hangs.missing_rank, store=str(tmp_path / "store")) as hang:
        hang.says(capsys, "Likely cause: Rank 1 of 2 has not joined the job for ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_rank_answers_no_other_user(ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.connect('\\0' + sys.argv[1])\n"
        "print(s.recv(65536))\n"
    )

    def is_joined(point: points.Point) -> bool:
        return point.process == ranks.pids[0] and point.job != ""

    with _Hang(ranks, tmp_path, hangs.many_steps) as hang:
        hang.says(capsys, "2 of 2 ranks are on this host", "Job ")
        [answer] = points.ask(points.find(), is_joined)
        for user, content in [(_NOBODY, "b''"), (0, "agspeed.inspection")]:
            command = ["/usr/bin/python3", "-c", script, answer.point.name[1:]]
            said = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, timeout=60, user=user, cwd="/", check=True
            )
            assert content in said.stdout

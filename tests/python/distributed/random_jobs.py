# SPDX-License-Identifier: Apache-2.0
"""Runs groups that tune together while their ranks stop, are slow, lose candidates or die.

    python -m tests.python.distributed.random_jobs --runs 200 --seed 0

Caches are empty, shared, damaged, vanish, or know the decision. Each run has a seed of its own. Ranks must decide alike
and hold equal weights. If a rank dies, the survivors must raise an error that names a rank, and none may wait for ever.
In half of the runs, child processes compile a candidate, some of them slowly. No child is left after a run, and no rank
after its group.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agspeed.backends import candidate
from agspeed.errors import AgspeedError
from agspeed.tuning.child import process
from tests.python.distributed import slow_child, together_cases
from tests.python.distributed.ranks import Ranks

PEER_TIMEOUT_S = 5
_ERROR_SLACK_S = 40
"""How long after the peer timeout to wait for the survivors' errors, on a busy machine."""
_TIMEOUT_S = 240
_KINDS = ("slow", "stall", "stall", "compile-fails", "compile-hangs", "kill")
_KINDS_WITH_CHILDREN = (*_KINDS, "stop", "child-slow", "child-slow", "child-dies")
_DEADLY = ("kill", "stop")
_STOPPED_S = 30
"""How long a rank is stopped before it dies. Its peers give it up long before."""
_CHILD_END_S = 90
"""How long an ending process may take at idle priority, on a busy machine."""
QUICK_CHILDREN = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
"""Saves each child some processes that try vector instructions."""
_MARK = "RANDOM_JOBS_MARK"
"""An environment variable that marks all processes that ranks have started."""
_VANISH_AT = 8
_WORKER = process.WORKER
_CACHES = ("own", "own", "known", "damaged", "vanishing")


@dataclass(frozen=True)
class Trouble:
    """A fault that happens on `rank` from step `step` on."""

    kind: str
    rank: int
    step: int


@dataclass(frozen=True)
class Plan:
    """One run, derived from its seed."""

    seed: int
    size: int
    backend: str
    caches: Sequence[str]
    troubles: Sequence[Trouble]
    uses_children: bool
    """True if a process beside each rank compiles candidate aot."""

    @classmethod
    def draw(cls, seed: int, size: int) -> Plan:
        rng = random.Random(seed)
        uses_children = rng.random() < 0.5
        kinds = rng.sample(_KINDS_WITH_CHILDREN if uses_children else _KINDS, rng.choice((0, 1, 1, 2, 3)))
        if set(_DEADLY) <= set(kinds):
            kinds.remove("stop")
        troubles = [Trouble(kind, rng.randrange(size), rng.choice((0, 3, 12, 30, 60))) for kind in dict.fromkeys(kinds)]
        caches = ["shared"] * size if rng.random() < 0.3 else [rng.choice(_CACHES) for _ in range(size)]
        return cls(seed, size, "agspeed", caches, troubles, uses_children)

    @property
    def death(self) -> Trouble | None:
        """The fault that kills a rank, or None."""
        return next((trouble for trouble in self.troubles if trouble.kind in _DEADLY), None)


def trained(
    caches: Sequence[str], troubles: Sequence[dict[str, Any]], uses_children: bool, folder: str
) -> dict[str, Any]:
    """Trains one rank. A rank may die before it can answer, so it writes its error to a file."""
    rank = dist.get_rank()
    mine = {trouble["kind"]: trouble["step"] for trouble in troubles if trouble["rank"] == rank}
    native, aot = type(candidate("native")), type(candidate("aot"))
    untouched = native.compile_in_parts
    aot.in_process = not uses_children
    if "child-slow" in mine:
        process.WORKER = slow_child.__name__
    if "compile-fails" in mine:
        native.compile_in_parts = _failing  # type: ignore[method-assign]
    elif "compile-hangs" in mine:
        native.compile_in_parts = _slow(untouched)  # type: ignore[method-assign]
    model = together_cases.wrapped(Path(caches[rank]))
    seen = Path(folder) / f"children-{rank}"

    def between_steps(number: int) -> None:
        if uses_children and not seen.exists() and compile_children():
            seen.touch()
        if number == _VANISH_AT and Path(caches[rank]).name.startswith("vanishing"):
            shutil.rmtree(caches[rank], ignore_errors=True)
        if number == mine.get("stall"):
            _stand_still(3)
        if number == mine.get("stop"):
            _stand_still(_STOPPED_S, signal.SIGKILL)
        if number == mine.get("child-dies"):
            for pid in compile_children():
                os.kill(pid, signal.SIGKILL)
        if number >= mine.get("slow", number + 1):
            time.sleep(0.01)
        if number == mine.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        return together_cases.train(model, before_each=between_steps)
    except (RuntimeError, AgspeedError) as error:
        (Path(folder) / f"raised-{rank}").write_text(str(error))
        raise
    finally:
        native.compile_in_parts = untouched  # type: ignore[method-assign]
        aot.in_process = True
        process.WORKER = _WORKER


def compile_children() -> list[int]:
    """The compile children of this process."""
    return [
        pid
        for pid in _processes()
        if _read(pid, "stat").rpartition(b")")[2].split()[1:2] == [str(os.getpid()).encode()]
        and any(name.encode() in _read(pid, "cmdline") for name in (_WORKER, slow_child.__name__))
    ]


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # the process has ended
        return b""


def _failing(self: Any, *_: Any) -> Any:
    raise RuntimeError("injected: this compile fails")


def _slow(compile_in_parts: Any) -> Any:
    def slowly(self: Any, *arguments: Any) -> Any:
        time.sleep(2)
        return compile_in_parts(self, *arguments)

    return slowly


def _stand_still(seconds: int, end: signal.Signals = signal.SIGCONT) -> None:
    """Stops this process for some seconds, as a debugger or the machine might."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -{end.value} {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def run(plan: Plan, ranks: Ranks, folder: Path) -> str:
    """Runs `plan` once on `ranks`. Returns its result in a word. Raises AssertionError if something went wrong."""
    caches = [_prepared(kind, folder, rank) for rank, kind in enumerate(plan.caches)]
    troubles = [asdict(trouble) for trouble in plan.troubles]
    arguments = {"caches": caches, "troubles": troubles, "uses_children": plan.uses_children, "folder": str(folder)}
    try:
        results = ranks.run(trained, folder, plan.backend, **arguments)
    except (AssertionError, EOFError, ConnectionError) as error:
        return _judged_death(plan, folder, error)
    death = plan.death
    assert death is None or results[0]["steps"] <= death.step, f"rank {death.rank} was to die"
    first = results[0]
    for rank, result in enumerate(results):
        for key in ("status", "plan"):
            assert result[key] == first[key], f"rank {rank}: {key} {result[key]}, rank 0: {first[key]}"
        assert result["status"] != "tuning", f"rank {rank} undecided after {result['steps']} steps: {result['reason']}"
        assert torch.equal(result["weights"], first["weights"]), f"rank {rank} has other weights than rank 0"
    return "eager" if first["plan"] == "eager" else "tuned"


def _judged_death(plan: Plan, folder: Path, error: BaseException) -> str:
    assert plan.death is not None, f"no rank was meant to die: {error}"
    dead = plan.death.rank
    limit = PEER_TIMEOUT_S + _ERROR_SLACK_S
    deadline = time.monotonic() + limit
    survivors = [rank for rank in range(plan.size) if rank != dead]
    while not all((folder / f"raised-{rank}").exists() for rank in survivors):
        assert time.monotonic() < deadline, f"survivors of rank {dead} did not raise within {limit} s"
        time.sleep(0.1)
    for rank in survivors:
        raised = (folder / f"raised-{rank}").read_text()
        assert "rank" in raised, f"rank {rank} raised without a name: {raised}"
    return "died"


def _prepared(kind: str, folder: Path, rank: int) -> str:
    """Returns a cache folder of that kind for a rank. A "known" folder outlives the run, so it may hold a decision."""
    cache = folder / f"{kind}-{rank}"
    if kind in ("known", "shared"):
        cache = folder.parent / f"known-{rank}" if kind == "known" else folder / kind
    cache.mkdir(exist_ok=True)
    if kind == "damaged":
        (cache / "tuning.sqlite").write_bytes(b"not a database " * 100)
    return str(cache)


def left_behind(mark: str) -> list[int]:
    """Returns processes that were started, not forked, with `mark` in their environment: children and their
    children."""
    return [pid for pid in _processes() if pid != os.getpid() and mark.encode() in _read(pid, "environ")]


class Group:
    """Ranks of one size, restarted after a run that ended them."""

    def __init__(self, size: int) -> None:
        self.size, self._mark = size, f"agspeed-random-jobs-{os.urandom(6).hex()}"
        self.num_with_children = 0
        """The number of runs in which a compile child was seen."""
        self._ranks: Ranks | None = None

    def run(self, plan: Plan, folder: Path) -> str:
        """Like the function `run`, but also raises AssertionError if a process of the run is left."""
        if self._ranks is None:
            limit = {"AGSPEED_PEER_TIMEOUT_MS": str(PEER_TIMEOUT_S * 1000)}
            self._ranks = Ranks(self.size, timeout_s=_TIMEOUT_S, **limit, **QUICK_CHILDREN, **{_MARK: self._mark})
        try:
            result = run(plan, self._ranks, folder)
            self.num_with_children += any(folder.glob("children-*"))
            if result != "died":
                _await_end(lambda: left_behind(self._mark))
        except BaseException:
            self.close()
            raise
        if result == "died":
            self.close()
        return result

    def close(self) -> None:
        """Ends the ranks. Raises AssertionError if a rank is left, or a process that a rank has started."""
        if self._ranks is None:
            return
        ranks, self._ranks = self._ranks, None
        pids = ranks.pids
        ranks.close()
        _await_end(lambda: left_behind(self._mark) + [pid for pid in pids if _is_alive(pid)])


def _await_end(left: Callable[[], list[int]]) -> None:
    deadline = time.monotonic() + _CHILD_END_S
    while found := left():
        shown = {pid: (_state(pid), _read(pid, "cmdline").replace(b"\0", b" ")) for pid in found}
        assert time.monotonic() < deadline, f"left after {_CHILD_END_S} s: {shown}"
        time.sleep(0.1)


def _is_alive(pid: int) -> bool:
    return _state(pid) not in (b"", b"Z")


def _state(pid: int) -> bytes:
    """The process's state: b"T" if it is stopped, b"" if it is gone."""
    return (_read(pid, "stat").rpartition(b")")[2].split() or [b""])[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.python.distributed.random_jobs", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each has its own")
    options = parser.parse_args()
    found: Counter[str] = Counter()
    groups = {size: Group(size) for size in (2, 3, 4)}
    home = Path(tempfile.mkdtemp(prefix="agspeed-random-jobs-"))
    for seed in range(options.seed, options.seed + options.runs):
        plan = Plan.draw(seed, (2, 3, 4)[seed % 3])
        folder = home / f"run-{seed}"
        folder.mkdir()
        begun = time.monotonic()
        try:
            result = groups[plan.size].run(plan, folder)
        except AssertionError as error:
            result = "wrong"
            print(f"{plan}: {error}", flush=True)
        found[result] += 1
        print(f"seed {seed}: {plan.size} ranks, {result}, {time.monotonic() - begun:.1f} s; {dict(found)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    for group in groups.values():
        group.close()
    print(f"{sum(group.num_with_children for group in groups.values())} runs had compile children", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

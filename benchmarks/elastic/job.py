# SPDX-License-Identifier: Apache-2.0
"""A job of `training.py` that meets faults, and what its processes noted about them."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cells import ROOT

__all__ = ["Fault", "Job", "NotInTimeError", "held_by"]

_WAIT_S = 120
_KILL_AFTER_STEPS = (3, 12)


class NotInTimeError(RuntimeError):
    """The ranks did not make the awaited steps in time."""


@dataclass(frozen=True)
class Note:
    kind: str
    at: float
    values: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """Seconds from a kill until the last survivor got the error; until all of them had made their next step; and
    until the group was complete again. `lost`: steps that were made again. `joined_pause`: the longest time between two
    steps of a survivor while the new process joined, less its usual time."""

    rank: int
    noticed: float | None
    resumed: float
    complete: float
    lost: int
    joined_pause: float | None


class _NotesFile:
    """The notes of one process: a line each, which the process adds as a whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._end = path, 0
        self.notes: list[Note] = []

    def read(self) -> None:
        """Reads the lines that were added since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._end)
            added = file.read()
        added = added[: added.rfind(b"\n") + 1]
        self._end += len(added)
        rows = [line.split() for line in added.decode("ascii").splitlines()]
        self.notes += [Note(row[0], float(row[1]), tuple(row[2:])) for row in rows]


class Job:
    """`way`: "elastic" under `agspeed run`, or "restart" under torchrun. A context manager.

    program: the module that processes run, which takes the arguments of `training.py` and notes the same.
    spares_oldest: whether the process that has lived longest is never killed, so that its memory shows any growth.
    """

    def __init__(
        self,
        way: str,
        size: int,
        pause: float,
        seed: int,
        program: str = "benchmarks.elastic.training",
        *,
        spares_oldest: bool = False,
    ) -> None:
        self._way, self._size, self._pause, self._program = way, size, pause, program
        self._spares_oldest = spares_oldest
        self._random = random.Random(seed)
        self._folder = tempfile.TemporaryDirectory(prefix="agspeed-elastic-")
        self.path = Path(self._folder.name)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._files: dict[int, _NotesFile] = {}

    def __enter__(self) -> "Job":
        self._start("--job-id", self.path.name)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._launcher is not None
        if self._launcher.poll() is None:
            self._launcher.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(20)
        if self._launcher.poll() is None:
            self._launcher.kill()
        self._launcher.wait()
        self._folder.cleanup()

    def begin(self) -> None:
        """Waits until all ranks have made their first steps."""
        self.wait_until_complete(0.0, 2)

    def wait_until_complete(self, since: float, steps: int) -> None:
        """Waits until all ranks are in a group of the full size and have made steps in it since this moment."""
        self._wait(lambda: len(self._of_size(self._size, since, steps)) == self._size, f"{steps} steps of all ranks")

    def kill_one(self) -> Fault:
        """Kills a random rank after a random number of steps, and waits until a process has taken its place."""
        self.wait_until_complete(time.monotonic(), self._random.randint(*_KILL_AFTER_STEPS))
        time.sleep(self._random.random() * (self._pause + 0.02))
        ranks = self.processes()
        spared = self._oldest() if self._spares_oldest else None
        rank = self._random.choice([rank for rank in range(self._size) if ranks[rank] != spared])
        others = [pid for each, pid in ranks.items() if each != rank]
        killed = time.monotonic()
        os.kill(ranks[rank], signal.SIGKILL)
        self.wait_until_complete(killed, 2)
        return self._fault(rank, others, killed)

    def lose_launcher(self) -> None:
        """Kills the launcher of an elastic job. Its processes go on."""
        assert self._launcher is not None
        self._launcher.kill()
        self._launcher.wait()

    def attach(self) -> None:
        """Starts another launcher for the job, and waits until it has attached."""
        self._start("--attach", self.path.name)
        sentence = f"attached to job {self.path.name} ".encode()
        self._wait(lambda: sentence in (self.path / "log").read_bytes(), "another launcher has the job")

    def processes(self) -> dict[int, int]:
        """The process of each rank in the newest group that has begun."""
        latest = {pid: _last(notes, "epoch") for pid, notes in self._notes().items() if os.path.exists(f"/proc/{pid}")}
        return {int(note.values[0]): pid for pid, note in latest.items() if note}

    def started(self) -> set[int]:
        """All processes that the job has started so far, and that have loaded their modules."""
        return set(self._notes())

    def end(self) -> tuple[int, list[str]]:
        """Ends the training. Returns: the number of steps, and the different digests of the ranks' weights."""
        assert self._launcher is not None
        (self.path / "stop").touch()
        self._launcher.wait(_WAIT_S)
        ends = [note for notes in self._notes().values() for note in notes if note.kind == "end"]
        if len(ends) != self._size:
            raise RuntimeError(f"{len(ends)} of {self._size} ranks reached the end:\n{self._log()}")
        return int(ends[0].values[0]), sorted({note.values[1] for note in ends})

    def goodput(self) -> float:
        """The time of all steps, at the median time of one, over the time that processes were in a group."""
        gaps: list[float] = []
        steps, seconds = 0, 0.0
        for notes in self._notes().values():
            times = [note.at for note in notes if note.kind == "step"]
            begin = _first(notes, "epoch")
            if begin is None or len(times) < 2:
                continue
            steps += len(times)
            gaps += [late - early for early, late in itertools.pairwise(times)]
            seconds += times[-1] - begin.at
        return steps * sorted(gaps)[len(gaps) // 2] / seconds

    def held(self) -> dict[str, int]:
        """Descriptors, threads and resident KiB of the process that has lived longest, and its id."""
        pid = self._oldest()
        return {"pid": pid, **held_by(pid)}

    def _oldest(self) -> int:
        notes = self._notes()
        return min(self.processes().values(), key=lambda pid: notes[pid][0].at)

    def _start(self, *options: str) -> None:
        """Starts a launcher. options: of `agspeed run` alone."""
        script = ["-m", self._program, str(self.path), str(self._pause), self._way]
        if self._way == "elastic":
            start = [sys.executable, "-m", "agspeed", "run", "-np", str(self._size), "--min-np", "2", *options]
            start += ["--blacklist-cooldown-range", "0.5", "0.5", sys.executable]  # faults follow each other closely
        else:
            start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self._size)]
            start += ["--max-restarts", "1000", "--monitor-interval", "0.1", "--master-addr", "127.0.0.1"]
            start += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        paths = os.pathsep.join(
            path for path in [str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH")] if path
        )
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": paths}
        with (self.path / "log").open("wb") as log:
            self._launcher = subprocess.Popen([*start, *script], env=environment, stdout=log, stderr=log)

    # --- from the notes -----------------------------------------------------------------------------------------------

    def _fault(self, rank: int, others: list[int], killed: float) -> Fault:
        notes = self._notes()
        before = max(int(note.values[0]) for pid in others for note in notes[pid] if _is_step(note, until=killed))
        # Under torchrun other processes go on, so all of them count.
        after = {pid: [note for note in each if note.at > killed] for pid, each in notes.items()}
        survivors = others if self._way == "elastic" else [pid for pid, each in after.items() if each]
        first_epochs = [_first(after[pid], "epoch") for pid in survivors if _first(after[pid], "epoch")]
        steps = [_first(_since(after[pid], "epoch"), "step") for pid in survivors if _first(after[pid], "epoch")]
        errors = [
            note.at
            for pid in others
            for note in itertools.takewhile(lambda note: note.kind != "epoch", after[pid])
            if note.kind == "error"
        ]
        complete = [
            note.at
            for each in after.values()
            for note in each
            if note.kind == "epoch" and int(note.values[1]) == self._size
        ]
        lost = before - min(int(note.values[2]) for note in first_epochs if note)
        return Fault(
            rank,
            max(errors) - killed if errors else None,
            max(note.at for note in steps if note) - killed,
            max(complete) - killed,
            max(0, lost),
            self._joined_pause(others, after, min(complete)) if self._way == "elastic" else None,
        )

    def _joined_pause(self, others: list[int], after: dict[int, list[Note]], complete: float) -> float:
        gaps: list[float] = []
        usual: list[float] = []
        for pid in others:
            steps = [note.at for note in after[pid] if note.kind == "step"]
            pairs = list(itertools.pairwise(steps))
            gaps += [late - early for early, late in pairs if early <= complete <= late]
            usual += [late - early for early, late in pairs if not early <= complete <= late]
        if not gaps:
            return 0.0
        return max(gaps) - sorted(usual)[len(usual) // 2] if usual else max(gaps)

    def _of_size(self, size: int, after: float, steps: int) -> list[int]:
        """The processes whose newest group has `size` ranks, and that have made steps in it since `after`."""
        found = []
        for pid, notes in self._notes().items():
            epoch = _last(notes, "epoch") if os.path.exists(f"/proc/{pid}") else None
            if epoch is None or int(epoch.values[1]) != size:
                continue
            since = max(after, epoch.at)
            if sum(note.kind == "step" and note.at > since for note in notes) >= steps:
                found.append(pid)
        return found

    def _notes(self) -> dict[int, list[Note]]:
        """The notes of each process so far. Only what was added since the last call is read."""
        for path in self.path.iterdir():
            if path.name.isdecimal():
                self._files.setdefault(int(path.name), _NotesFile(path)).read()
        return {pid: file.notes for pid, file in self._files.items()}

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        assert self._launcher is not None
        until = time.monotonic() + _WAIT_S
        while not is_so():
            if self._launcher.poll() is not None:
                raise RuntimeError(f"the launcher ended with status {self._launcher.returncode}:\n{self._log()}")
            if time.monotonic() > until:
                raise NotInTimeError(f"{what}: not so after {_WAIT_S} s:\n{self._log()}")
            time.sleep(0.05)

    def _log(self) -> str:
        return (self.path / "log").read_text(encoding="utf-8", errors="replace")[-2000:]


def held_by(pid: int) -> dict[str, int]:
    """Descriptors, threads and resident KiB of a process."""
    rows = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(row.split(":", 1) for row in rows)
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "resident_kib": int(status["VmRSS"].split()[0]),
    }


def _is_step(note: Note, until: float) -> bool:
    return note.kind == "step" and note.at <= until


def _first(notes: list[Note], kind: str) -> Note | None:
    return next((note for note in notes if note.kind == kind), None)


def _last(notes: list[Note], kind: str) -> Note | None:
    return next((note for note in reversed(notes) if note.kind == kind), None)


def _since(notes: list[Note], kind: str) -> list[Note]:
    """The notes from the first one of this kind on."""
    return notes[next((index for index, note in enumerate(notes) if note.kind == kind), len(notes)) :]

# SPDX-License-Identifier: Apache-2.0
"""The shown output of ranks: lines, progress bars, long lines, other character sets, and files with all output."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from tests.python.launch.jobs import TIMEOUT_S, Job, wait_until

WAIT = """
import os, pathlib, sys, time
def wait(name):
    until = time.monotonic() + 60
    while not pathlib.Path(os.environ["FOLDER"], name).exists():
        time.monotonic() < until or sys.exit(f"there is no {name}")
        time.sleep(0.01)
"""


@pytest.fixture
def job(tmp_path: Path):
    with Job(tmp_path) as job:
        yield job


def output_of(job: Job, text: str, num_ranks: int = 1, *options: str | Path, **more) -> tuple[bytes, bytes]:
    launcher = job.start(num_ranks, text, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    out, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 0, err
    return out, err


@pytest.mark.parametrize("written", ["\\r 10%", "\\r 10%\\r", "Loading ... ", " 10%\\r 11%"])
def test_what_stands_in_an_unfinished_line_is_seen_while_the_rank_goes_on(job: Job, written: str) -> None:
    text = WAIT + f"sys.stderr.write('{written}'); sys.stderr.flush(); wait('seen')"
    launcher = job.start(1, text, stderr=subprocess.PIPE, FOLDER=str(job.folder))
    assert launcher.stderr is not None
    job.lines(launcher.stderr, written.replace("\\r", "").split("%")[0].encode())
    (job.folder / "seen").touch()
    assert launcher.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("a\\n\\nb\\n", "[0]<stdout>:a\n[0]<stdout>:\n[0]<stdout>:b\n"),
        ("a\\r\\nb\\r\\n", "[0]<stdout>:a\r\n[0]<stdout>:b\r\n"),
        ("c\\n\\r10%\\r20%\\nd", "[0]<stdout>:c\n[0]<stdout>:10%\r[0]<stdout>:20%\n[0]<stdout>:d"),
        ("10%\\r20%\\r\\n", "[0]<stdout>:10%\r[0]<stdout>:20%\r\n"),
    ],
)
def test_lines_end_at_line_feeds_and_carriage_returns(job: Job, written: str, seen: str) -> None:
    assert output_of(job, f"import os; os.write(1, b'{written}')")[0] == seen.encode()


def test_a_line_that_comes_in_parts_stays_one(job: Job) -> None:
    """Python writes a line in parts if output is unbuffered."""
    text = "import os\nfor part in ('a', ' ', 'b', '\\n'): os.write(1, part.encode())"
    assert output_of(job, text)[0] == b"[0]<stdout>:a b\n"


ONE_AFTER_THE_OTHER = """
if os.environ["RANK"] == "0":
    print("abc", end="")
    wait("second")
    print("def")
else:
    wait("first")
    print("xyz")
"""


def test_unfinished_lines_of_two_ranks_never_share_a_line(job: Job) -> None:
    launcher = job.start(2, WAIT + ONE_AFTER_THE_OTHER, stdout=subprocess.PIPE, FOLDER=str(job.folder))
    assert launcher.stdout is not None
    seen = job.lines(launcher.stdout, b"abc")
    (job.folder / "first").touch()
    seen += job.lines(launcher.stdout, b"xyz\n")
    (job.folder / "second").touch()
    seen += job.lines(launcher.stdout, b"def\n")
    assert seen == b"[0]<stdout>:abc\n[1]<stdout>:xyz\n[0]<stdout>:def\n"
    assert launcher.wait(TIMEOUT_S) == 0


def test_a_long_line_passes_through_whole_in_little_memory(job: Job) -> None:
    text = WAIT + "for _ in range(200): os.write(1, b'x' * (1 << 20))\nos.write(1, b'\\n'); wait('seen')"
    launcher = job.start(1, text, stdout=subprocess.PIPE, FOLDER=str(job.folder))
    assert launcher.stdout is not None
    seen = launcher.stdout.read(12 + (200 << 20) + 1)
    status = Path(f"/proc/{launcher.pid}/status").read_text()
    (job.folder / "seen").touch()
    assert launcher.wait(TIMEOUT_S) == 0
    assert (seen[:13], seen.count(b"x"), seen[-1:]) == (b"[0]<stdout>:x", 200 << 20, b"\n")
    peak = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    assert peak < 150 << 10, f"{peak >> 10} MiB"


WRITE_WHAT_IS_TAKEN = """
os.set_blocking(1, False)
taken, last = 0, time.monotonic()
while time.monotonic() - last < 2 and taken < 64 << 20:
    try:
        taken += os.write(1, b"x" * 1023 + b"\\n")
        last = time.monotonic()
    except BlockingIOError:
        time.sleep(0.01)
pathlib.Path(os.environ["FOLDER"], "taken").write_text(str(taken))
"""


def test_ranks_wait_for_a_slow_reader(job: Job) -> None:
    """A rank's writes block when the reader is slow: at most some MiB are buffered for it."""
    launcher = job.start(1, WAIT + WRITE_WHAT_IS_TAKEN, stdout=subprocess.PIPE, FOLDER=str(job.folder))
    assert launcher.stdout is not None
    wait_until((job.folder / "taken").exists, "the rank is done")
    launcher.stdout.read()
    assert launcher.wait(TIMEOUT_S) == 0
    assert int((job.folder / "taken").read_text()) < 8 << 20


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_bytes_are_passed_on_as_they_are(job: Job, encoding: str) -> None:
    text = "import os; os.write(1, '✓ é\\n'.encode() + b'\\xff\\n')"
    out, _ = output_of(job, text, PYTHONIOENCODING=encoding)
    assert out == b"[0]<stdout>:" + "✓ é".encode() + b"\n[0]<stdout>:\xff\n"


def test_the_last_lines_leave_out_what_a_progress_bar_has_overwritten(job: Job) -> None:
    text = """
import os
for percent in range(100): os.write(2, b"\\r%d%%" % percent)
os.write(2, b"\\rno more data\\nends here")
os._exit(3)
"""
    launcher = job.start(1, text)
    assert launcher.wait(TIMEOUT_S) == 3
    report = job.errors().split("its last lines:\n")[1]
    assert report == "  no more data\n  ends here\n"


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_have_every_byte(job: Job) -> None:
    text = "import os; os.write(1, b'a\\r10%\\xff'); os.write(2, b'err\\n')"
    output_of(job, text, 1, "--output-filename", job.folder / "logs")
    assert (job.folder / "logs" / "rank.0" / "stdout").read_bytes() == b"a\r10%\xff"
    assert (job.folder / "logs" / "rank.0" / "stderr").read_bytes() == b"err\n"


@pytest.mark.parametrize("kind", ["symlink", "dangling symlink", "hard link"])
def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(job: Job, kind: str) -> None:
    victim, place = job.folder / "victim", job.folder / "logs" / "rank.0" / "stdout"
    place.parent.mkdir(parents=True)
    victim.write_text("precious")
    if kind == "hard link":
        place.hardlink_to(victim)
    else:
        place.symlink_to(victim if kind == "symlink" else job.folder / "elsewhere")
    output_of(job, "print('out')", 1, "--output-filename", job.folder / "logs")
    assert victim.read_text() == "precious" and not (job.folder / "elsewhere").exists()
    assert place.read_text() == "out\n" and not place.is_symlink()


@pytest.mark.parametrize("kind", ["symlink", "another user's folder", "a pipe", "a file"])
def test_what_is_no_place_for_files_is_refused_before_anything_starts(job: Job, kind: str) -> None:
    place, elsewhere = job.folder / "logs" / "rank.0", job.folder / "elsewhere"
    place.parent.mkdir()
    elsewhere.mkdir()
    if kind == "symlink":
        place.symlink_to(elsewhere)
    elif kind == "a file":
        place.touch()
    else:
        place.mkdir()
        if kind == "a pipe":
            os.mkfifo(place / "stdout")
        elif os.geteuid() == 0:
            os.chown(place, 12345, 12345)
        else:
            pytest.skip("only root can make another user's folder")
    text = f"import pathlib; pathlib.Path({str(job.folder / 'started')!r}).touch()"
    launcher = job.start(1, text, "--output-filename", job.folder / "logs")
    assert launcher.wait(TIMEOUT_S) == 2
    assert job.errors().startswith("agspeed: ") and str(place) in job.errors() and job.errors().count("\n") == 1
    assert list(elsewhere.iterdir()) == [] and not (job.folder / "started").exists()


def test_a_file_that_cannot_grow_is_named_once_and_the_job_goes_on(job: Job) -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    out, err = output_of(
        job, "for _ in range(100): print('x' * 99)", 1, "--output-filename", job.folder / "logs", preexec=limit_files
    )
    place = job.folder / "logs" / "rank.0" / "stdout"
    assert err.decode() == f"agspeed: {place} cannot be written: File too large; it ends here\n"
    assert out.count(b"\n") == 100 and place.stat().st_size == 1000

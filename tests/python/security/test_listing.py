# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md lists each socket that a job of two ranks listens on, and each file that it makes.

The job trains, tunes and compiles in folders that belong to this test. The test scans them repeatedly meanwhile.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed import native
from agspeed.launch import keeper

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
_PAGE = Path(__file__).parents[3] / "SECURITY.md"
_LIMIT_S = 400
_SHM = Path("/dev/shm")
_TCP_LISTEN, _UNIX_LISTEN = "0A", 0x10000
_LOOPBACK = "0100007F"
_TRAIN = """
import sys, time, torch, agspeed
from torch import nn
torch.distributed.init_process_group(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
model = agspeed.optimize(nn.parallel.DistributedDataParallel(model), mode="max", backends=sys.argv[2:])
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
while agspeed.status(model) == "tuning":
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def _rows(title: str) -> list[list[str]]:
    """Returns the rows of the page's table below a heading, without the two lines of its head."""
    section = _PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _names(title: str) -> list[str]:
    return [re.fullmatch(r"`(.+)`", row[0])[1] for row in _rows(title)]  # type: ignore[index]


def _job_members(launcher: int) -> Iterator[int]:
    found = keeper.processes()
    members = [launcher]
    for member in members:
        members += [pid for pid, process in found.items() if process.parent == member]
    yield from members


def _listening() -> dict[str, str]:
    """Returns each listening socket of this network namespace by inode, with the name that the page uses."""
    found = {}
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{family}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _TCP_LISTEN:
                address = local.partition(":")[0]
                is_any = not int(address, 16)
                place = "127.0.0.1" if address == _LOOPBACK else "all interfaces" if is_any else "interface"
                found[inode] = f"tcp {place}"
    for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if int(flags, 16) & _UNIX_LISTEN:
            found[inode] = f"unix {path[0] if path else '-'}"
    return found


def _sockets(launcher: int) -> set[str]:
    listening, found = _listening(), set()
    for pid in _job_members(launcher):
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:
            continue  # the process has ended
        found |= {listening[link[8:-1]] for link in links if link[8:-1] in listening and link.startswith("socket:")}
    return found


def _entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields the entries of a folder and its subfolders, with their permissions."""
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in folders + names):
            with contextlib.suppress(FileNotFoundError):
                yield path, stat.S_IMODE(path.lstat().st_mode)


def _row_of(name: str) -> list[str] | None:
    """Returns the most specific row for a file: its own, or its folder's."""
    patterns = {row[0].strip("`"): row for row in _rows("Files and folders that agspeed makes")}
    found = [pattern for pattern in patterns if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"{pattern}/*")]
    return patterns[max(found, key=len)] if found else None


@pytest.mark.parametrize(
    ("backend", "compilers"),
    [("agspeed", ["native", "inductor"]), pytest.param("gloo", ["native"], marks=pytest.mark.thorough)],
)
def test_the_page_lists_all_that_a_job_opens(backend: str, compilers: list[str], tmp_path: Path) -> None:
    homes = {"~": tmp_path / "home", "$TMPDIR": tmp_path / "tmp", ".": tmp_path / "work"}
    for folder in homes.values():
        folder.mkdir()
    (tmp_path / "train.py").write_text(_TRAIN)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGSPEED", "TORCH", "XDG"))}
    kept |= {"PYTHONPATH": str(_PAGE.parent / "python")}
    environment = kept | {"HOME": str(homes["~"]), "TMPDIR": str(homes["$TMPDIR"]), "AGSPEED_PROGRESS": "0"}
    sockets: set[str] = set()
    members: set[int] = set()
    files: dict[str, int] = {}
    script = [sys.executable, str(tmp_path / "train.py"), backend, *compilers]
    command = [sys.executable, "-m", "agspeed", "run", "-np", "2", *script]
    with open(tmp_path / "output", "wb") as output:
        job = subprocess.Popen(command, cwd=homes["."], env=environment, stdout=output, stderr=output)
        try:
            end = time.monotonic() + _LIMIT_S
            while job.poll() is None:
                assert time.monotonic() < end, (tmp_path / "output").read_text()
                sockets |= _sockets(job.pid)
                members |= set(_job_members(job.pid))
                for name, folder in homes.items():
                    files |= {f"{name}/{path.relative_to(folder)}": mode for path, mode in _entries(folder)}
                time.sleep(0.1)
        finally:
            job.kill()
            job.wait()
    assert job.returncode == 0, (tmp_path / "output").read_text()

    listed = _names("Sockets that listen")
    assert sockets, "nothing listened"
    unlisted = {each for each in sockets if not any(fnmatch.fnmatch(each, name) for name in listed)}
    assert not unlisted, f"SECURITY.md does not list {sorted(unlisted)}; it lists {listed}"
    if backend == "agspeed":
        optional = {"tcp interface"}  # a host may have only the loopback interface
        unseen = [name for name in listed if not fnmatch.filter(sockets, name) and name not in optional]
        assert not unseen, f"SECURITY.md lists {unseen}, which the job did not open"

    for name, mode in files.items():
        row = _row_of(name)
        assert row is not None or name == "~/.cache", f"SECURITY.md does not list {name}"
        is_itself = row is not None and row[0].count("/") == name.count("/")
        if row is not None and is_itself and re.fullmatch("0[0-7]{3}", row[1]):
            assert mode == int(row[1], 8), f"{name} has mode {mode:o}, SECURITY.md says {row[1]}"
    is_child_seen = any(name.startswith("$TMPDIR/agspeed-child-") for name in files)
    assert is_child_seen == ("inductor" in compilers)

    left = {path.name for path, _ in _entries(homes["$TMPDIR"])} | {path.name for path, _ in _entries(homes["."])}
    assert not {name for name in left if not name.startswith("torchinductor_")}, "a normal end leaves nothing"
    shared = [path.name for path in _SHM.iterdir()] if _SHM.is_dir() else []
    assert not [name for name in shared if any(f"torch_{pid}_" in name for pid in members)]

# SPDX-License-Identifier: Apache-2.0
"""The checks of `agspeed doctor`. Each is a function without arguments that yields `Check`s.

To add a check, write a function here and add it to `CHECKS`. A failed check names its remedy, as a command if there is
one. Checks leave nothing behind and never raise.
"""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from agspeed import config
from agspeed.cli import cache_files as files
from agspeed.cli.config import shown
from agspeed.cli.probe import installed_version, native_files, probe, run_child
from agspeed.errors import UserError
from agspeed.native_files import extensions, release
from agspeed.reporting import environment
from agspeed.reporting import format as fmt

__all__ = ["CHECKS", "Check", "available_memory", "compile_canary", "filesystem"]

_MIN_TORCH = (2, 11)
_PYTHONS = ((3, 11), (3, 13))
_INSTALL_TORCH = "pip install 'torch>=2.11'"
_CORRECT = "correct it; `agspeed config --explain` lists every setting"
_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps . (in the source checkout)"
_LOW_MEMORY = 1 << 30
_LOW_ROOM = 256 << 20
_TRIED_BYTES = 1 << 20
_CANARY_TIMEOUT_S = 180
_NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.sshfs", "9p")

_CANARY = """
import torch, agspeed
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(8, 16)
agspeed.optimize(model, mode="max", backends=["native"], strict=True)
for _ in range(40):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
print("CANARY", agspeed.status(model))
"""


class Check(NamedTuple):
    """One line of the doctor. `status` is ok, warn (works, but not well) or fail (does not work)."""

    name: str
    status: str
    detail: str
    remedy: str = ""


def python() -> Iterator[Check]:
    version = platform.python_version()
    if not _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        yield Check("python", "fail", f"{version} is not supported", "use CPython 3.11, 3.12 or 3.13")
        return
    yield Check("python", "ok", f"{platform.python_implementation()} {version}")


def torch() -> Iterator[Check]:
    installed = installed_version("torch")
    if installed is None and "torch" not in probe():
        yield Check("torch", "fail", "torch is not installed", _INSTALL_TORCH)
        return
    if "torch" not in probe():
        yield Check("torch", "fail", f"{installed} cannot be loaded: {probe()['torch_error']}", _INSTALL_TORCH)
        return
    version = str(probe()["torch"])
    if release(version) < _MIN_TORCH:
        yield Check("torch", "fail", f"{version} is older than 2.11", _INSTALL_TORCH)
        return
    yield Check("torch", "ok", version + (", CUDA available" if probe()["cuda"] else ""))


def torch_parts() -> Iterator[Check]:
    """Checks that the private parts of torch that agspeed uses are as it expects."""
    if "torch" not in probe():
        return  # the check `torch` reports the reason
    parts: dict[str, str] = probe().get("torch_parts", {})
    for sentence in filter(None, parts.values()):
        yield Check("parts of torch", "warn", sentence, probe().get("torch_remedy", _INSTALL_TORCH))
    if not any(parts.values()):
        yield Check("parts of torch", "ok", f"{', '.join(parts)}: as expected")


def native() -> Iterator[Check]:
    """Checks that the extension exists and fits this Python and this torch; shows the LLVM inside it."""
    found = native_files()
    if not extensions():
        built = f"built for another Python ({', '.join(found)})" if found else "not built"
        yield Check("native extension", "fail", f"{built}: every model runs eagerly", _REBUILD)
        return
    if "native" not in probe():
        yield Check("native extension", "fail", f"cannot be loaded: {probe()['native_error']}", _REBUILD)
        return
    info = probe()["native"]
    have, built = str(probe().get("torch", "none")), str(info.get("torch", "unknown"))
    running = "" if have == built else f", running with {have}"
    yield Check(
        "native extension", "ok", f"built for torch {built}{running}, LLVM {info.get('llvm', 'unknown')} inside"
    )


def processor() -> Iterator[Check]:
    isa = environment.isa()
    if isa in ("x86_64", "avx"):
        detail = f"{environment.cpu_name()}: no AVX2, kernels will be slow"
        yield Check("instruction set", "warn", detail, "run on a machine with AVX2, AVX-512 or NEON")
        return
    yield Check("instruction set", "ok", f"{isa} ({environment.cpu_name()})")


def threads() -> Iterator[Check]:
    cores, used = environment.cores(), probe().get("threads")
    machine = os.cpu_count() or cores
    where = f"{fmt.plural(cores, 'core')} of {machine} may be used"
    if used is not None and used > cores:
        remedy = f"export OMP_NUM_THREADS={cores}"
        yield Check("threads", "warn", f"torch uses {used} threads, and {where}: they will wait for each other", remedy)
        return
    yield Check("threads", "ok", where if used is None else f"torch uses {used}, {where}")


def memory() -> Iterator[Check]:
    free = available_memory()
    text = f"{fmt.size(free)} free of {fmt.size(environment.memory_bytes())}"
    if free < _LOW_MEMORY:
        remedy = "end other programs or use a larger machine: the gate needs room for an fp64 copy"
        yield Check("memory", "warn", text, remedy)
        return
    yield Check("memory", "ok", text)


def settings() -> Iterator[Check]:
    """Reports errors in the settings; without errors, lists all settings, each with its origin."""
    try:
        effective = config.resolve()
        config.check_paths(effective)
    except UserError as error:
        yield Check("settings", "fail", str(error), _CORRECT)
        return
    if "settings_error" in probe() and "torch" in probe():  # checking backend and plan names needs the whole package
        yield Check("settings", "fail", probe()["settings_error"], _CORRECT)
        return
    for name, entry in effective.to_dict().items():
        yield Check("setting", "ok", f"{name}: {shown(entry['value'])} ({entry['origin']})")
    for sentence in effective.warnings:
        word = sentence.split()[0]
        if word.startswith("AGSPEED_"):
            yield Check("settings", "fail", sentence, f"unset {word}, or correct its name")
        else:
            yield Check("settings", "warn", sentence, "remove the file, or make it and its folder your own")
    if effective.disable or effective.mode == "off":
        remedy = "unset AGSPEED_DISABLE, or set another mode"
        yield Check("kill switch", "warn", "on: every model runs eagerly", remedy)


def user() -> Iterator[Check]:
    """Checks that the user has a name: parts of torch name folders after the user."""
    try:
        name = getpass.getuser()
    except (ImportError, KeyError, OSError):
        detail = f"the system has no name for user {os.getuid()}: parts of torch fail where they need one"
        yield Check("user", "fail", detail, "export USER=trainer (or another name)")
        return
    yield Check("user", "ok", name)


def home() -> Iterator[Check]:
    folder = config.home(os.environ)
    remedy = "export HOME=<a folder of your own>"
    if folder is None:
        detail = "there is none: HOME names none, and neither does the system's list of users"
        yield Check("home", "fail", detail, remedy)
    elif (problem := _write_problem(folder)) is not None:
        yield Check("home", "fail", f"{folder} cannot be written: {problem}", remedy)
    else:
        yield Check("home", "ok", str(folder))


def temporary_files() -> Iterator[Check]:
    """Checks the temporary folder that compilers use. Python would switch to another folder if this one cannot be
    written; compilers do not."""
    folder = Path(next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp"))
    remedy = "make room there, or set TMPDIR to a folder with room"
    if (problem := _write_problem(folder)) is not None:
        yield Check("temporary files", "fail", f"{folder} cannot be written: {problem}", remedy)
        return
    yield _judged_by_room("temporary files", folder, str(folder), remedy)


def cache() -> Iterator[Check]:
    try:
        folder = config.resolve().cache_dir
    except UserError:
        return  # the check `settings` reports the reason
    name = "cache directory"
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if (problem := config.why_not_writable(folder) or _write_problem(existing)) is not None:
        remedy = "set AGSPEED_CACHE_DIR to a directory of your own, with room"
        yield Check(name, "fail", f"{folder} cannot be written: {problem}", remedy)
        return
    reason = files.distrust(folder) if folder.exists() else None
    if reason is not None:
        yield Check(name, "fail", f"{folder} {reason}: it is ignored", f"chmod go-w {folder}, or set AGSPEED_CACHE_DIR")
        return
    kind = filesystem(existing)
    if kind in _NETWORK_FILESYSTEMS:
        remedy = "set AGSPEED_CACHE_DIR to a local directory"
        yield Check(name, "warn", f"{folder} is on {kind}: slow and locks may fail", remedy)
        return
    text = str(folder) if folder.exists() else f"{folder} (will be created)"
    yield _judged_by_room(name, existing, text, "agspeed cache prune, or set AGSPEED_CACHE_DIR")


def inductor() -> Iterator[Check]:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++")), None)
    if compiler is None or shutil.which(compiler.split()[0]) is None:
        detail = "no C++ compiler found: the candidate `inductor` will be skipped on this processor"
        yield Check("inductor", "warn", detail, "apt-get install g++ (or set CXX)")
        return
    yield Check("inductor", "ok", f"C++ compiler {compiler}")


def compile_canary() -> Iterator[Check]:
    """Optimizes a tiny model in a child process and trains it for a few steps."""
    code, output = run_child(_CANARY, _CANARY_TIMEOUT_S)
    line = next((line for line in output.splitlines() if line.startswith("CANARY ")), None)
    if code == 0 and line is not None:
        yield Check("compile canary", "ok", f"a tiny model was optimized and trained: {line.removeprefix('CANARY ')}")
        return
    ended = "took longer than three minutes" if code == -1 else f"ended with code {code}"
    last = next((text for text in reversed(output.splitlines()) if text.strip()), "no output")
    detail = f"a process that optimizes a tiny model {ended}: {last}"
    remedy = "AGSPEED_DISABLE=1 trains eagerly; report it with the file of `agspeed doctor --compile --report FILE`"
    yield Check("compile canary", "fail", detail, remedy)


CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    python,
    torch,
    torch_parts,
    native,
    processor,
    threads,
    memory,
    settings,
    user,
    home,
    temporary_files,
    cache,
    inductor,
)


def _write_problem(folder: Path) -> str | None:
    """Returns why files cannot be written in a folder, or None. Tries it with a file without a name."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _judged_by_room(name: str, folder: Path, text: str, remedy: str) -> Check:
    """Returns a check that warns if the folder has little free space."""
    free = shutil.disk_usage(folder).free
    if free < _LOW_ROOM:
        return Check(name, "warn", f"{text}: {fmt.size(free)} free", remedy)
    return Check(name, "ok", text)


def available_memory() -> int:
    """Returns the bytes that new programs may use."""
    available, whole = environment.available_bytes(), environment.memory_bytes()
    return whole if available is None else min(available, whole)


def filesystem(path: Path) -> str:
    """Returns the type of the file system that holds `path`, or ""."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    resolved = path.resolve()
    holding = [(point, kind) for point, kind in mounts if resolved.is_relative_to(point)]
    return max(holding, key=lambda item: len(item[0]), default=("", ""))[1]

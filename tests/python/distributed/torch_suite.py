# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own tests of a backend, the class DistributedTest._DistTestBase, over a backend in Gloo's place.

The source of these tests is loaded with the backend's name in place of Gloo's. So the tests expect of that backend what
they expect of Gloo alone. Each test runs in ranks that are forked from this process, several tests at a time; GPUs are
hidden.

    python -m tests.python.distributed.torch_suite --ranks 3                   # agspeed, tests that pass over Gloo
    python -m tests.python.distributed.torch_suite --ranks 3 --backend gloo    # every test, over torch's Gloo
    python -m tests.python.distributed.torch_suite --record                    # finds the tests that pass over Gloo

Prints a JSON object per test: its name, its outcome ("passed", "skipped", "failed"), its seconds and the error.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

SIZES = (2, 3)
MODULE = "torch.testing._internal.distributed.distributed_test"
#: The tests that pass over Gloo, written by --record: {"torch": version, "2": [names], "3": [names]}.
BASELINE = Path(__file__).with_name("torch_suite_gloo.json")
#: The number of tests at a time. Tests wait more than they compute.
JOBS = 4
_LIMIT_S = 120
_BARRIER_S = 60


@dataclass
class Result:
    name: str
    outcome: str
    seconds: float = 0.0
    text: str = ""


@dataclass
class _Running:
    """A running test: a process and a file of output per rank."""

    name: str
    folder: tempfile.TemporaryDirectory[str]
    processes: list[Any] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)


class Suite:
    """The tests of a backend for `size` ranks. Torch's module reads the size when it is loaded, so one suite per
    process."""

    def __init__(self, backend: str, size: int) -> None:
        os.environ |= {
            "BACKEND": backend,
            "WORLD_SIZE": str(size),
            "INIT_METHOD": "file://",
            "MASTER_ADDR": "127.0.0.1",
            "CUDA_VISIBLE_DEVICES": "",
            "AGSPEED_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.size = size
        self._module = _load(backend)
        bases = (self._module.TestDistBackend, self._module.DistributedTest._DistTestBase)
        self._case: Any = type("TorchSuite", bases, {"_barrier": self._barrier})
        self._skips = {each.exit_code for each in self._module.TEST_SKIPS.values()}

    def names(self) -> list[str]:
        return [name for name in dir(self._case) if name.startswith("test_")]

    def run(self, names: list[str], jobs: int) -> Iterator[Result]:
        """Yields results as tests end, with at most `jobs` at a time."""
        waiting = list(reversed(names))
        running: list[_Running] = []
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop()
                if getattr(getattr(self._case, name), "__unittest_skip__", False):
                    yield Result(name, "skipped")
                else:
                    running.append(self._start(name))
            wait([each.sentinel for test in running for each in test.processes if each.is_alive()], timeout=1)
            for test in [each for each in running if self._has_ended(each)]:
                running.remove(test)
                yield self._finish(test)

    def _barrier(self, wait_for: int | None = None, timeout: float = 0) -> None:
        """Torch's barrier with a longer timeout."""
        self._module.Barrier.sync(wait_for, max(timeout, _BARRIER_S))

    def _start(self, name: str) -> _Running:
        test = _Running(name, tempfile.TemporaryDirectory(prefix="torch-suite-", ignore_cleanup_errors=True))
        for part in ("barrier", "test_dir"):
            Path(test.folder.name, part).mkdir()
        context = multiprocessing.get_context("fork")
        for rank in range(self.size):
            process = context.Process(target=self._serve, args=(name, rank, Path(test.folder.name)), daemon=True)
            process.start()
            test.processes.append(process)
        return test

    def _serve(self, name: str, rank: int, folder: Path) -> None:
        """Runs the test as one rank. The exit code gives the outcome."""
        output = os.open(folder / f"output-{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["TEMP_DIR"] = str(folder)
        self._module.INIT_METHOD = f"file://{folder}/second"
        _, pipe = multiprocessing.Pipe()
        self._case._run(rank, name, str(folder / "first"), pipe)

    def _has_ended(self, test: _Running) -> bool:
        codes = [each.exitcode for each in test.processes]
        has_failed = any(code not in (None, 0, *self._skips) for code in codes)
        return has_failed or None not in codes or time.monotonic() - test.started > _LIMIT_S

    def _finish(self, test: _Running) -> Result:
        codes = [each.exitcode for each in test.processes]
        seconds = round(time.monotonic() - test.started, 1)
        for process in test.processes:
            process.kill()
            process.join()
        outcome = "passed" if set(codes) == {0} else "skipped" if set(codes) <= {0, *self._skips} else "failed"
        text = ""
        if outcome == "failed":
            text = f"exit codes {codes} (null: was still running) after {seconds} s\n" + "".join(
                f"--- rank {rank}:\n{Path(test.folder.name, f'output-{rank}').read_text(errors='replace')[-6000:]}\n"
                for rank in range(self.size)
            )
        test.folder.cleanup()
        return Result(test.name, outcome, seconds, text)


def _load(backend: str) -> Any:
    """Loads torch's module of tests, with `backend` in Gloo's place."""
    from torch.testing._internal.common_distributed import DistTestCases

    import agspeed.distributed

    agspeed.distributed.register()
    spec = find_spec(MODULE)
    assert spec is not None and spec.origin is not None, f"torch has no {MODULE}"
    source = Path(spec.origin).read_text()
    if backend != "gloo":
        source = _in_gloos_place(source, backend)
        for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
            DistTestCases.backend_feature[feature].add(backend)
    module = types.ModuleType(MODULE)
    module.__dict__.update(agspeed=agspeed, __file__=spec.origin)
    sys.modules[MODULE] = module  # pickle looks up its classes there
    exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module


def _in_gloos_place(source: str, backend: str) -> str:
    # The name stays in tests that read Gloo's environment variables from DDP's logging data.
    source = re.sub(r'(?<!"backend_name"\) == )"gloo"', f'"{backend}"', source)
    source = source.replace("Backend.GLOO", f"Backend.{backend.upper()}")
    # Torch's own function works with Gloo's groups only.
    return source.replace("dist.monitored_barrier(", "agspeed.distributed.monitored_barrier(")


def passing_over_gloo(size: int) -> list[str]:
    names: list[str] = json.loads(BASELINE.read_text())[str(size)]
    return names


def record() -> None:
    """Writes BASELINE. Each size runs in a process of its own."""
    import torch

    found: dict[str, Any] = {"torch": torch.__version__}
    for size in SIZES:
        command = [sys.executable, "-m", "tests.python.distributed.torch_suite", "--backend=gloo", f"--ranks={size}"]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        results = [json.loads(line) for line in lines]
        found[str(size)] = sorted(each["name"] for each in results if each["outcome"] == "passed")
    BASELINE.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="agspeed")
    parser.add_argument("--ranks", type=int, default=SIZES[0])
    parser.add_argument("--jobs", type=int, default=JOBS, help="tests at a time")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--record", action="store_true", help=f"measure Gloo and write {BASELINE.name}")
    arguments = parser.parse_args()
    if arguments.record:
        record()
        return 0
    suite = Suite(arguments.backend, arguments.ranks)
    default = suite.names() if arguments.backend == "gloo" else passing_over_gloo(arguments.ranks)
    for result in suite.run(arguments.only or default, arguments.jobs):
        print(json.dumps(asdict(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

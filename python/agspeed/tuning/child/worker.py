# SPDX-License-Identifier: Apache-2.0
"""The compile child, started and owned by `agspeed.tuning.child.process`.

It receives jobs from the socket that is its stdin. Each job is a JSON message with the descriptor of the file that
contains its region (`job.py`). It writes one JSON answer per line to the descriptor named on the command line. The
first line is {"guarded": true}: from then on it ends together with the training process, even while it is stopped.

    {"id": 3, "candidate": "inductor", "options": {...}}
    {"id": 3, "state": "ready", "reason": "", "compile_seconds": 8.1, "gate": {...}, "code_digest": "..."}

It compiles, gates and tries the candidate exactly as the training process would. This fills the on-disk caches, and a
crash, a hang or an ``exit`` happens here. The worker ends when that socket closes, that is, when the training process
ends. A stopped worker cannot read the socket: the kernel wakes it with a signal instead, and it kills its process
group, compilers included. If memory runs out, the kernel kills the worker before the training process.

Batch systems announce the end of a job by a signal to all its processes. The worker ignores these signals, because
training decides what follows. Otherwise candidates would count as candidates that kill their process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from agspeed.reporting.parts import Json
    from agspeed.tuning.child.answers import Answer

_NUM_TRIALS = 3
_MAX_JOB_BYTES = 1 << 16
_MAX_REASON = 500
_NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """argv: the descriptor for answers, the training process's id, and "prepare" if the first job comes later."""
    if not _ends_with(int(argv[1])):
        return 1
    _go_first_when_memory_ends()
    os.set_inheritable(int(argv[0]), False)
    answers = os.fdopen(int(argv[0]), "w", encoding="utf-8")
    _send(answers, {"guarded": True})
    if "prepare" in argv:
        _prepare()
    for job in _jobs():
        _send(answers, {"id": job["id"], "started": True})
        _send(answers, {"id": job["id"], **_run_safely(job)})
    return 0


def _jobs() -> Iterator[Json]:
    """Yields jobs as they arrive, until the training process ends. "region" is the job's file, open until the next."""
    with socket.socket(fileno=0) as training:
        while True:
            message, descriptors, _, _ = socket.recv_fds(training, _MAX_JOB_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not descriptors:
                return
            with open(descriptors[0], "rb") as region:
                yield {**json.loads(message), "region": region}


def _ends_with(parent: int) -> bool:
    """Kills this process group, which this process leads, once `parent` has ended. Ignores notices for all processes.

    Returns: False if `parent` has ended already.

    A separate thread waits for the signal, because the main thread may be blocked in a compiler. Call this before the
    process starts other threads: they inherit the signal mask.
    """
    own = os.getpid()
    for number in _NOTICES:
        signal.signal(number, signal.SIG_IGN)  # compilers inherit it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the kernel ends stopped compilers with it; nohup had ignored it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})  # a blocked SIGCONT still continues a stopped process

    def watch() -> None:
        while os.getppid() == parent:
            signal.sigwait({signal.SIGCONT})
        os.killpg(own, signal.SIGKILL)

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    if os.getppid() != parent:
        return False
    threading.Thread(target=watch, name="agspeed-end", daemon=True).start()
    return True


def _go_first_when_memory_ends() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _run_safely(job: Json) -> Answer:
    """Like `_run`, but returns an error outside the candidate as a failed answer."""
    try:
        return _run(job)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        return {"state": "failed", "reason": f"the compile process could not try it: {text[:_MAX_REASON]}"}


def _prepare() -> None:
    """Loads modules that the first job probably needs, which takes seconds. Ignores errors: the job meets them too."""
    with contextlib.suppress(Exception):
        from agspeed.torch_compat import inductor

        inductor.load()
        for name in ("agspeed.tuning.build", "agspeed.tuning.child.job"):
            importlib.import_module(name)
        from agspeed.backends import vector_isa

        with vector_isa.remembering():
            inductor.pick_vector_isa()


def _run(job: Json) -> Answer:
    import torch

    from agspeed.backends import CompileOptions, vector_isa
    from agspeed.devices.accelerator import accelerator_of
    from agspeed.devices.placement import home_of, tensors_in
    from agspeed.regions.proof import Proof
    from agspeed.tuning.build import build
    from agspeed.tuning.child.job import read_region

    options = CompileOptions(**job["options"])
    torch.set_num_threads(options.num_threads)
    region = read_region(job["region"])
    outcome = build(job["candidate"], region, options)
    if outcome.runner is not None and region.sample is not None:
        accelerator = accelerator_of(home_of(tensors_in(region.sample)))
        with region.modes.restored(), torch.random.fork_rng(devices=[]):
            for _ in range(_NUM_TRIALS):
                outcome.runner(*region.sample)
            if accelerator is not None:
                accelerator.synchronize()  # raises errors of the device
    proof = Proof.of(outcome)
    return {
        "state": outcome.state,
        "reason": outcome.reason,
        "compile_seconds": outcome.compile_seconds,
        "gate": outcome.gate,
        "proof": proof.to_json() if proof is not None else None,
        "code_digest": getattr(outcome.runner, "code_digest", None),
        "twins": getattr(outcome.runner, "twins", ()),
        "vector_isa": vector_isa.found(),
    }


def _send(answers: TextIO, message: Mapping[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

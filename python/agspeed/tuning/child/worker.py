# SPDX-License-Identifier: Apache-2.0
"""The compile child, started and owned by `agspeed.tuning.child.process`.

Receives jobs from the socket that is its stdin, each a message in JSON with the descriptor of a file that its region is
in (`job.py`). Writes one JSON answer per line to the descriptor named on the command line, after a line
{"guarded": true}: from then on it does not outlive the training process, though it be stopped:

    {"id": 3, "candidate": "inductor", "options": {...}}
    {"id": 3, "state": "ready", "reason": "", "compile_seconds": 8.1, "gate": {...}, "code_digest": "..."}

It compiles, gates and tries the candidate exactly as the training process would, so that on-disk caches are filled
and a crash, a hang or an ``exit`` happens here. It ends when that socket closes, that is, when the training process
ends. A suspended worker reads nothing: the kernel wakes it then, and it takes its compilers with it. Where memory runs
out, the kernel takes it before the training process.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

_NUM_TRIALS = 3
_MAX_JOB_BYTES = 1 << 16
_MAX_REASON = 500
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Arguments: the descriptor for answers; the training process; "prepare" where there is time before the jobs."""
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


def _jobs() -> Iterator[dict[str, Any]]:
    """As they come, until the training process has ended; "region" of each is its file, open meanwhile."""
    with socket.socket(fileno=0) as training:
        while True:
            message, descriptors, _, _ = socket.recv_fds(training, _MAX_JOB_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not descriptors:
                return
            with open(descriptors[0], "rb") as region:
                yield {**json.loads(message), "region": region}


def _ends_with(parent: int) -> bool:
    """Kills this process group, whose leader this process is, once `parent` is gone. Returns: False if it is.

    A thread of its own waits for the signal: where any thread might take it, the one that waits for a compiler need
    not hear of it. To be called before there are other threads.
    """
    own = os.getpid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # by it the kernel ends stopped compilers without us, under nohup too
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})  # it continues what is stopped all the same

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


def _run_safely(job: dict[str, Any]) -> dict[str, Any]:
    """`_run`; whatever goes wrong outside the candidate is the answer, too."""
    try:
        return _run(job)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        return {"state": "failed", "reason": f"the compile process could not try it: {text[:_MAX_REASON]}"}


def _prepare() -> None:
    """Loads what the first job is likely to need, which takes seconds. What fails here fails in the job, too."""
    with contextlib.suppress(Exception):
        from agspeed.torch_compat import inductor

        inductor.load()
        for name in ("agspeed.tuning.build", "agspeed.tuning.child.job"):
            importlib.import_module(name)
        from agspeed.backends import vector_isa

        with vector_isa.remembering():
            inductor.pick_vector_isa()


def _run(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    from agspeed.backends import CompileOptions, vector_isa
    from agspeed.devices.accelerator import accelerator_of
    from agspeed.devices.placement import home_of, tensors_in
    from agspeed.tuning.build import build
    from agspeed.tuning.child.job import read_region
    from agspeed.tuning.proof import Proof

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
                accelerator.synchronize()  # what went wrong on the device shows here
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


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

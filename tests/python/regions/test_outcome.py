# SPDX-License-Identifier: Apache-2.0
"""A shortage of the machine is distinguished from a fault of a candidate."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from agspeed.regions.outcome import Outcome, described, first_passing, may_pass
from agspeed.regions.state import State


def _raised_from(cause: BaseException) -> BaseException:
    try:
        try:
            raise cause
        except BaseException as error:
            raise RuntimeError("backend raised:\nC++ compile error") from error
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/cache/ab/kernel.so"),
        OSError("/cache/ab/kernel.so: cannot open shared object file: Permission denied"),
        FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("C++ compile error\n\nOutput:\nfatal error: error writing to /tmp/x.s: No space left on device"),
        RuntimeError("C++ compile error\ng++: fatal error: Killed signal terminated program cc1plus"),
        RuntimeError("can't start new thread"),
    ],
)
def test_what_the_machine_lacked_may_pass(error: BaseException) -> None:
    for raised in (error, _raised_from(error)):
        assert may_pass(f"compile failed with {type(raised).__name__}: {described(raised)}"), described(raised)


@pytest.mark.parametrize(
    "reason",
    [
        "compile failed with KeyError: 'a bug'",
        "the compile process died of SIGSEGV while compiling or trying it",
        "gradient 0 is off by 0.3",
        "no C++ compiler (g++) is on PATH: install g++ to let Inductor generate CPU code",
        "needs 30 % more memory than eager",
        "",
    ],
)
def test_what_is_wrong_with_a_candidate_stays(reason: str) -> None:
    assert not may_pass(reason)


def test_a_long_message_is_cut_and_a_chain_that_is_a_ring_ends() -> None:
    error = ValueError("x" * 10_000 + "\nOSError: No space left on device" + "y" * 10_000)
    error.__context__ = error.__cause__ = RuntimeError("ring")
    error.__cause__.__cause__ = error
    assert len(described(error)) < 1100 and "No space left" in described(error)
    assert described(ValueError()) == ""


def test_any_region_and_any_rank_may_have_lacked_something() -> None:
    full = "compile failed with OSError: [Errno 28] No space left on device"
    good = Outcome("aot", State.READY, runner=lambda *args: args)
    bad = Outcome("aot", State.FAILED, full)
    arms = [{"name": "aot", "state": "ready", "reason": ""}]
    assert first_passing([good, good], arms) is None
    assert first_passing([good, bad], arms) == f"aot {full}"
    elsewhere = [{"name": "native", "state": "failed", "reason": f"{full} (rank 1 on b)"}]
    assert first_passing([good], elsewhere) == f"native {full} (rank 1 on b)"
    lost = [{"name": "native", "state": "ready", "reason": "lost: out of memory is no reason for one that is ready"}]
    assert first_passing([good], lost) is None

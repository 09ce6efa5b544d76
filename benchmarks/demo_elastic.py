# SPDX-License-Identifier: Apache-2.0
"""The demonstration's fourth act: a process of an elastic job is killed, and a new one takes its place."""

from benchmarks.elastic.job import Job

_PROCESSES = 4
_COMPUTE_SECONDS = 0.05
_SEED = 1


def show() -> None:
    """Prints what a kill costs the processes that are left."""
    print(
        f"agspeed run -np {_PROCESSES} --min-np 2 python -m benchmarks.elastic.training\n"
        "The script differs from one for DistributedDataParallel by an elastic.State and an @elastic.run.\n"
    )
    with Job("elastic", _PROCESSES, _COMPUTE_SECONDS, _SEED) as job:
        job.begin()
        fault = job.kill_one()
        print(f"rank {fault.rank} was killed with SIGKILL during a step")
        if fault.noticed is not None:
            print(f"{fault.noticed:>7.2f} s later the other {_PROCESSES - 1} had the error of a lost peer")
        print(f"{fault.resumed:>7.2f} s later they had made their next step together; {fault.lost} step(s) made again")
        print(f"{fault.complete:>7.2f} s later a new process had started and joined them with their weights")
        steps, digests = job.end()
        print(f"\nafter {steps} steps the {_PROCESSES} processes have {_judged(digests)} weights; none was restarted")


def _judged(digests: list[str]) -> str:
    return "equal" if len(digests) == 1 else f"DIFFERENT ({', '.join(digests)})"

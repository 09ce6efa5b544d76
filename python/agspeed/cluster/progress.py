# SPDX-License-Identifier: Apache-2.0
"""`report_progress`: shows how far a training has come in the status of its TrainJob (Kubeflow Trainer 2.2 and 2.3).

Nothing is reported unless a script asks for it. Each report replaces the whole status, so reports of our own would
remove the ones of other libraries, such as Hugging Face's Trainer.

Threading: any thread may call it. A thread of `Reporter` sends.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Mapping
from typing import SupportsIndex

from agspeed.cluster.status_server import LARGEST_NUMBER, MOST_BYTES_OF_TEXT
from agspeed.cluster.trainer_status import MOST_METRICS, TrainerStatus
from agspeed.errors import UserError, UserTypeError

__all__ = ["report_progress"]

_RANKS = (
    # rank, size. The first pair that is set counts.
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PET_NODE_RANK", "PET_NNODES"),
)


def report_progress(
    step: SupportsIndex | None = None,
    num_steps: SupportsIndex | None = None,
    *,
    percentage: float | None = None,
    remaining_seconds: float | None = None,
    metrics: Mapping[str, float | str] | None = None,
) -> None:
    """Shows how far the training has come in the status of its TrainJob.

        for step in range(num_steps):
            ...
            cluster.report_progress(step + 1, num_steps)

    Call it at all ranks, as often as you like. Rank 0 reports, at most once in 5 s, with the newest values. The call
    does not wait for the network. If the server does not take a report, there is one warning, and the next attempt
    comes after 5 minutes. Training goes on. The end of the process sends the last values, for which it waits 4 s at
    most.

    Outside of a TrainJob, and if the cluster does not offer it, the call checks its arguments and does nothing else.

    Args:
        step: how many steps are done. Pass it together with num_steps. The status then has the percentage, the
            remaining seconds and the metrics step, num_steps and steps_per_second, with the speed of the last minute.
        num_steps: how many steps there are in all.
        percentage: from 0 to 100, in place of the one that follows from the steps.
        remaining_seconds: likewise.
        metrics: names and values, such as {"loss": loss.item()}. The status keeps the newest value of each name.
            Numbers are shown with 6 digits. Names and texts have 64 bytes at most.

    Raises:
        UserError: a value is out of its range, or too long.
        UserTypeError: a value has a wrong type, such as a tensor. item() makes a number of a tensor, and waits for a
            GPU.
    """
    steps = _steps(step, num_steps)
    done = None if percentage is None else math.floor(_number("percentage", percentage, 100))
    left = None if remaining_seconds is None else math.ceil(_number("remaining_seconds", remaining_seconds))
    texts = _metrics({} if metrics is None else metrics)
    rank, size = _placement(os.environ)
    if rank == "0":
        _status.report(steps, done, left, ({} if size is None else {"world_size": size}) | texts)


_status = TrainerStatus(os.environ)


def _begin_anew() -> None:
    """A forked process has no thread of the reporter, and its copies of locks may be taken."""
    global _status
    _status = TrainerStatus(os.environ)


os.register_at_fork(after_in_child=_begin_anew)


def _placement(environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns the rank and the number of ranks, as a launcher wrote them. A process without a launcher has rank 0."""
    return next(((environ[rank], environ.get(size)) for rank, size in _RANKS if rank in environ), ("0", None))


def _steps(step: SupportsIndex | None, num_steps: SupportsIndex | None) -> tuple[int, int] | None:
    if step is None and num_steps is None:
        return None
    if step is None or num_steps is None:
        given, missing = ("num_steps", "step") if step is None else ("step", "num_steps")
        raise UserError(f"{missing}: it is missing beside {given}; the progress follows from both.")
    try:
        done, all_steps = operator.index(step), operator.index(num_steps)
    except TypeError:
        kinds = f"{type(step).__name__} and {type(num_steps).__name__}"
        raise UserTypeError(f"step and num_steps are of the types {kinds}; pass whole numbers.") from None
    if done < 0 or all_steps < 1:
        raise UserError(f"step {done} of num_steps {all_steps}: pass how many are done, and how many there are in all.")
    return done, all_steps


def _number(name: str, value: object, most: int = LARGEST_NUMBER) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserTypeError(f"{name}: it is of the type {type(value).__name__}; pass a number.")
    number = float(value)
    if not 0 <= number <= most:
        raise UserError(f"{name}: {value} is not from 0 to {most}.")
    return number


def _metrics(given: Mapping[str, float | str]) -> dict[str, str]:
    """Returns the values as texts."""
    if len(given) > MOST_METRICS:
        raise UserError(f"metrics: there are {len(given)}, and a status has {MOST_METRICS} at most; pass fewer.")
    texts = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise UserTypeError(f"metrics: the name {name!r} is of the type {type(name).__name__}; pass a text.")
        texts[_short("a name", name)] = _short(f"the value of {name}", _text_of(name, value))
    return texts


def _text_of(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserTypeError(
            f"metrics: the value of {name} is of the type {type(value).__name__}; pass a number or a text, such as "
            "tensor.item()."
        )
    return str(int(value)) if isinstance(value, numbers.Integral) else f"{float(value):.6g}"


def _short(what: str, text: str) -> str:
    if not text or not text.isprintable() or len(text.encode()) > MOST_BYTES_OF_TEXT:
        raise UserError(
            f"metrics: {what} cannot be {text[:MOST_BYTES_OF_TEXT]!r}; write 1 to {MOST_BYTES_OF_TEXT} bytes that can "
            "be printed."
        )
    return text

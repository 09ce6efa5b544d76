# SPDX-License-Identifier: Apache-2.0
"""Chooses for each bucket whether bfloat16 or bytes pay, from measurements in the job itself.

For each bucket, the steps of a job are:

1. Two steps are dense.
2. In three probes, the ranks wait for each other and then measure an exchange of a few bytes and a dense all-reduce.
   Each rank times the codecs on a copy of its gradients, and takes the norm of their errors.
3. The ranks exchange these numbers. All of them make the same estimate (estimate.py).
4. If a codec may pay, blocks of steps follow: dense, codec, codec, dense. The ranks exchange their median times of a
   step. The codec stays only if it has shortened the step.
5. After 2,000 steps, this begins again with the probes.

Each choice uses only the number of the bucket's step and numbers that all ranks have received, so all ranks choose
alike. Dense steps are left to the driver (`is_dense`), because it can overlap them with the backward entirely.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from agspeed.distributed.codecs.cast import BFloat16
from agspeed.distributed.codecs.codec import Bucket, Codec, Pending, Steps, Wire, average_densely
from agspeed.distributed.codecs.estimate import COSTS, Estimate, Measured, decided
from agspeed.distributed.codecs.int8 import Int8
from agspeed.errors import UserError

__all__ = ["Auto"]

_PROBES_FROM, _PROBES_TO = 2, 5
_BLOCK = 8
_BLOCKS = (False, True, True, False)
"""Whether a block of the trial uses the codec."""
_TRIAL_FROM = _PROBES_TO + 1
_TRIAL_TO = _TRIAL_FROM + _BLOCK * len(_BLOCKS)
_PERIOD = 2000
_SHORTER = 0.97
"""A codec stays only if a step takes less than this part of a dense one."""
_UNKNOWN = Measured(float("inf"), float("inf"), (float("inf"),) * len(COSTS), (0.0,) * len(COSTS))


class _Alone:
    """The wire of a rank without others, to time what a codec computes."""

    rank, size = 0, 1

    def all_reduce(self, values: torch.Tensor) -> Pending:
        return lambda: values

    def all_gather(self, values: torch.Tensor) -> Pending:
        return lambda: values.unsqueeze(0)

    def all_to_all(self, rows: torch.Tensor) -> Pending:
        return lambda: rows


class _Choice:
    """What is known about one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.names, self.bytes = bucket.names, bucket.values.nbytes
        self.step = -1
        self.codec, self.why = "", "it is being measured"
        self.is_settled = False
        self.estimate: Estimate | None = None
        self.measured = _UNKNOWN
        self.began: float | None = None
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        self.steps_s: tuple[float, float] | None = None  # dense, codec

    def enter_step(self, now: float) -> None:
        self.step += 1
        if self.step >= _PERIOD:
            self.step = _PROBES_FROM
            self.measured, self.seconds = _UNKNOWN, {False: [], True: []}
        # The first interval of a block has a step of the block before in it.
        if _TRIAL_FROM < self.step <= _TRIAL_TO and (self.step - _TRIAL_FROM) % _BLOCK != 1 and self.began is not None:
            self.seconds[self.uses_codec(self.step - 1)].append(now - self.began)
        self.began = now

    def uses_codec(self, step: int) -> bool:
        """Whether the codec sends the bucket in this step."""
        if _TRIAL_FROM <= step < _TRIAL_TO and self.codec:
            return _BLOCKS[(step - _TRIAL_FROM) // _BLOCK]
        return bool(self.codec) and self.is_settled and step > _TRIAL_TO


class Auto(Codec):
    """Sends a bucket as bfloat16 or bytes if that makes training steps shorter, else densely. See the module's
    docstring.

    max_error: the largest norm of a codec's error, relative to the gradients' norm. dense_below: buckets with fewer
    values are sent densely. Raises: UserError for values out of range.
    """

    name = "auto"

    def __init__(self, max_error: float = 0.05, dense_below: int = 4096) -> None:
        if not max_error > 0:
            raise UserError(f"max_error={max_error} is not valid: write a number above 0, such as 0.05.")
        self.max_error, self.dense_below = max_error, dense_below
        self._codecs: dict[str, Codec] = {"bf16": BFloat16(), "int8": Int8(dense_below=1)}
        self._choices: dict[tuple[str, ...], _Choice] = {}
        self._has_others = False  # buckets that are always sent densely
        self._num_ranks = 1

    def describe(self) -> str:
        return f"{self.name}(max_error={self.max_error}, dense_below={self.dense_below})"

    def __getstate__(self) -> dict[str, Any]:
        return {"max_error": self.max_error, "dense_below": self.dense_below}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Auto.__init__(self, **state)

    def is_dense(self, bucket: Bucket) -> bool:
        if bucket.values.dtype != torch.float32 or bucket.values.numel() < self.dense_below:
            self._has_others = True
            return True
        choice = self._choices.get(bucket.names)
        if choice is None:
            self._forget_others(bucket)
            choice = self._choices[bucket.names] = _Choice(bucket)
        choice.enter_step(time.perf_counter())
        at = choice.step
        has_work = _PROBES_FROM <= at <= _PROBES_TO or (at == _TRIAL_TO and bool(choice.codec))
        return not (has_work or choice.uses_codec(at))

    def steps(self, bucket: Bucket, wire: Wire) -> Steps:
        choice = self._choices[bucket.names]
        self._num_ranks = wire.size
        if choice.step < _PROBES_TO:
            # The rest runs when the driver resumes, which it does in the same order at all ranks.
            yield lambda: bucket.values
            self._probe(bucket, choice, wire)
        elif choice.step == _PROBES_TO:
            rows = yield wire.all_gather(_numbers(choice.measured.numbers(), bucket))
            self._estimate(choice, rows.tolist())
            yield from average_densely(bucket.values, wire)
        elif choice.step == _TRIAL_TO:
            medians = [statistics.median(choice.seconds[uses_codec]) for uses_codec in (False, True)]
            rows = yield wire.all_gather(_numbers(medians, bucket))
            _settle(choice, rows.tolist())
            yield from average_densely(bucket.values, wire)
        else:
            yield from self._codecs[choice.codec].steps(bucket, wire)

    def _probe(self, bucket: Bucket, choice: _Choice, wire: Wire) -> None:
        """Measures, and averages the bucket densely. Waits for each collective, because time passes for nothing else
        meanwhile."""
        seconds, errors = [], []
        is_finite = bool(torch.isfinite(bucket.values).all())
        for name in COSTS:
            spent, error = self._tried(self._codecs[name], bucket) if is_finite else (float("inf"), 0.0)
            seconds.append(spent)
            errors.append(error)
        few = bucket.values.new_zeros(8)
        wire.all_gather(few)()
        latency = _timed(lambda: wire.all_gather(few)(), few)
        bucket.values.div_(wire.size)
        dense = _timed(lambda: wire.all_reduce(bucket.values)(), few)
        choice.measured = choice.measured.best(Measured(latency, dense, tuple(seconds), tuple(errors)))

    @staticmethod
    def _tried(codec: Codec, bucket: Bucket) -> tuple[float, float]:
        """Returns the seconds that a codec computes for a bucket, and its relative error."""
        copy = bucket._replace(values=bucket.values.clone())

        def run() -> None:
            steps = codec.steps(copy, _Alone())
            pending = next(steps, None)
            while pending is not None:
                try:
                    pending = steps.send(pending())
                except StopIteration:
                    return

        spent = _timed(run, copy.values)
        norm = bucket.values.norm()
        return spent, float((copy.values - bucket.values).norm() / norm) if norm else 0.0

    def _estimate(self, choice: _Choice, rows: Sequence[Sequence[float]]) -> None:
        choice.estimate = decided([Measured.of(row) for row in rows], self.max_error)
        choice.codec, choice.why = choice.estimate.codec, choice.estimate.why or "it is being tried"
        choice.is_settled = not choice.codec
        choice.steps_s = None

    def report(self) -> list[dict[str, Any]]:
        """Returns a row for each bucket that is large enough, equal at all ranks.

        A row has: `parameters` (names), `bytes` (of the gradients), `sends` (the codec, or "dense"), `why`, `dense_s`
        (measured seconds of an exchange), `codec_s` (predicted ones, by codec), `errors` (by codec, relative norms),
        `step_s` (measured seconds of a step: dense, with the codec) and `saved_bytes` (of one rank, in each step). None
        or {} stand for numbers that were not measured yet. Any thread may call it.
        """
        return [self._row(choice) for choice in list(self._choices.values())]

    def _row(self, choice: _Choice) -> dict[str, Any]:
        estimate, codec = choice.estimate, choice.codec if choice.is_settled else ""
        dense_bytes = 2 * (self._num_ranks - 1) / self._num_ranks * choice.bytes
        return {
            "parameters": list(choice.names),
            "bytes": choice.bytes,
            "sends": codec or "dense",
            "why": choice.why,
            "dense_s": estimate.dense_s if estimate is not None else None,
            "codec_s": _finite(estimate.codec_s) if estimate is not None else {},
            "errors": dict(estimate.errors) if estimate is not None else {},
            "step_s": list(choice.steps_s) if choice.steps_s is not None else None,
            "saved_bytes": round(dense_bytes * (1 - COSTS[codec].bytes)) if codec else 0,
        }

    def sentence(self) -> str:
        rows = self.report()
        if not rows:
            return f"gradients are sent densely, because auto has not met a bucket of {self.dense_below} values or more"
        coded = [row for row in rows if row["sends"] != "dense"]
        if not coded:
            return f"gradients are sent densely by auto ({rows[0]['why']})"
        kinds = ", ".join(sorted({row["sends"] for row in coded}))
        saved, error = sum(row["saved_bytes"] for row in coded), max(row["errors"][row["sends"]] for row in coded)
        return (
            f"auto sends {len(coded)} of {len(rows)} buckets as {kinds}: {saved / 2**20:.1f} MiB less in each step, "
            f"with a relative error of {error:.2g} ({coded[0]['why']})"
        )

    def has_given_up(self) -> bool:
        """Whether all buckets are sent densely after their measurements. The answer is equal at all ranks between two
        steps."""
        choices = self._choices.values()
        return (self._has_others or bool(choices)) and all(each.is_settled and not each.codec for each in choices)

    def restart(self) -> None:
        """Forgets all measurements, because the next step has another group of ranks."""
        self._choices = {}

    def _forget_others(self, bucket: Bucket) -> None:
        """Drops buckets that had some of these parameters: the driver has divided them anew."""
        own = set(bucket.names)
        for names in [names for names in self._choices if not own.isdisjoint(names)]:
            del self._choices[names]


def _finite(seconds: Mapping[str, float]) -> dict[str, float]:
    """Leaves out codecs that were not measured, because a rank had NaN or infinity in each probe."""
    return {name: each for name, each in seconds.items() if each < float("inf")}


def _numbers(values: Sequence[float], bucket: Bucket) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=bucket.values.device)


def _timed(run: Callable[[], object], like: torch.Tensor) -> float:
    _wait_for_device(like)
    began = time.perf_counter()
    run()
    _wait_for_device(like)
    return time.perf_counter() - began


def _wait_for_device(like: torch.Tensor) -> None:
    if not like.is_cpu:
        torch.accelerator.synchronize(like.device)


def _settle(choice: _Choice, rows: Sequence[Sequence[float]]) -> None:
    """Keeps the codec if the slowest rank's steps were shorter with it."""
    dense, coded = (max(row[at] for row in rows) for at in range(2))
    choice.steps_s, choice.is_settled = (dense, coded), True
    if coded < _SHORTER * dense:
        choice.why = f"a step takes {1e3 * coded:.2f} ms instead of {1e3 * dense:.2f}"
    else:
        choice.why = f"with {choice.codec}, a step takes {1e3 * coded:.2f} ms instead of {1e3 * dense:.2f}"
        choice.codec = ""

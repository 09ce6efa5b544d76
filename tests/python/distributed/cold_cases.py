# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in tests of compiles that take longer than a rank may stand still.

They train a wrapped model on the same batches as a plain one. Candidate aot runs eager's operators, so weights must
have eager's bits.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import agspeed
from agspeed.frontend.session import session_of
from agspeed.tuning.child import process
from tests.python.distributed import slow_child, tuned_cases


def inductor_cold_at_one_rank(cache: str, timeout_s: float, seconds: float) -> dict[str, Any]:
    """Gives each rank caches of its own, as on separate hosts. Rank 1 finds none of Inductor's results in its cache:
    each graph takes `seconds` more in the training process, and some time in its child. Collectives may take
    `timeout_s`.
    """
    from torch._inductor import compile_fx

    rank, size = dist.get_rank(), dist.get_world_size()
    own = Path(cache) / f"rank-{rank}"
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout_s))
    untouched, worker = compile_fx.compile_fx_inner, process.WORKER
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own / "inductor")
    if rank == size - 1:
        compile_fx.compile_fx_inner = _slowly(untouched, seconds)
        process.WORKER = slow_child.__name__
    try:
        tuned = _training(str(own), group, is_optimized=True)
        tuned.until_decided()
    finally:
        compile_fx.compile_fx_inner, process.WORKER = untouched, worker
        if folder is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    tuned.steps(tuned_cases.MORE_STEPS)
    expected = _training(str(own), group, is_optimized=False)
    expected.steps(tuned.num_steps)
    session = session_of(tuned.model.module)
    assert session is not None
    return {
        "plan": session.plan,
        "reason": agspeed.status(tuned.model).reason,
        "arms": {arm["name"]: arm for arm in session.tuner_snapshot()["arms"]},
        "weights": tuned.weights(),
        "expected": expected.weights(),
    }


def _training(cache: str, group: Any, *, is_optimized: bool) -> tuned_cases.Training:
    torch.manual_seed(3)
    model = tuned_cases.SlowEagerly()
    if is_optimized:
        agspeed.optimize(model, mode="max", backends=["inductor", "aot"], cache_dir=Path(cache))
    return tuned_cases.Training(DistributedDataParallel(model, process_group=group), tuned_cases.sgd(model))


def _slowly(compile_graph: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def compile_slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return compile_graph(*args, **kwargs)

    return compile_slowly

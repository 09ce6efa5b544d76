# SPDX-License-Identifier: Apache-2.0
"""The meter of steps measures when it is asked to, and runs no code in all other steps."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as torch_optimizer

from agspeed.distributed import stragglers
from agspeed.distributed.stragglers.step_meter import StepMeter

_FOLDER = str(Path(stragglers.__file__).parent)
_STEPS = 40
"""More than one measurement takes."""


@pytest.fixture
def wrapper(tmp_path: Path) -> Iterator[DistributedDataParallel]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield DistributedDataParallel(nn.Linear(4, 4))
    distributed.destroy_process_group()


def calls_in(wrapper: DistributedDataParallel, optimizer: torch.optim.Optimizer, num_steps: int) -> Counter[str]:
    """Makes steps. Returns: how often each function of the folder was called in them."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_FOLDER):
            calls[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        for _ in range(num_steps):
            optimizer.zero_grad()
            wrapper(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    finally:
        sys.setprofile(None)
    return calls


def test_steps_outside_of_a_measurement_run_no_code_of_the_meter(wrapper: DistributedDataParallel) -> None:
    meter, optimizer = StepMeter(wrapper), torch.optim.SGD(wrapper.parameters(), lr=0.1)
    hooks = dict(torch_optimizer._global_optimizer_post_hooks)
    assert calls_in(wrapper, optimizer, 3) == Counter()
    for _ in range(2):
        assert meter.begin()
        assert calls_in(wrapper, optimizer, _STEPS)["_call"] > 0, "the measurement itself is seen"
        assert meter.is_done.is_set() and meter.measured is not None
        assert calls_in(wrapper, optimizer, 3) == Counter()
        assert torch_optimizer._global_optimizer_post_hooks == hooks

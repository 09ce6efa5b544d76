# SPDX-License-Identifier: Apache-2.0
"""Local steps: ranks train on their own and exchange how far their parameters have moved, not gradients (README.md).

Training changes by that, so it is on only if a script calls `local_steps`. The tuner never does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from agspeed.distributed.diloco.training import LocalSteps, Options

__all__ = ["LocalSteps", "local_steps"]


def local_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    every: int,
    warmup: int,
    fragments: int = 1,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.5,
    compression: str = "int8",
    process_group: Any = None,
) -> LocalSteps:
    """Lets each rank take `every` steps on its own between two synchronizations.

        model = torch.nn.Linear(32, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        local = agspeed.distributed.local_steps(model, optimizer, every=50, warmup=500)
        for inputs, labels in batches:
            loss(model(inputs), labels).backward()
            optimizer.step()  # synchronizes when it is due
            optimizer.zero_grad()
        local.synchronize()

    This is DiLoCo (https://arxiv.org/abs/2311.08105), in fragments as in Streaming DiLoCo
    (https://arxiv.org/abs/2501.18512). The first `warmup` steps are dense: they average the gradients of all ranks.
    From then on, ranks step alone. A synchronization averages how far the ranks have moved the parameters. An outer
    optimizer, SGD with Nesterov's momentum, moves the outer parameters by that average, and all ranks continue from
    them. Outer parameters have the same bits at all ranks.

    All ranks make the same call, once, and take equally many steps. The parameters and buffers of rank 0 replace the
    others'. With several fragments, each has its own moments of synchronization, evenly spread over `every` steps.
    Gradient accumulation needs nothing: only steps of the optimizer count. An optimizer's state stays at its rank.

    Args:
        model: the module itself, without DistributedDataParallel. Its buffers, such as BatchNorm's statistics, are rank
            0's after each round of `every` steps.
        optimizer: steps parameters of the model, and only these.
        every: the local steps between two synchronizations of a parameter.
        warmup: the number of dense steps at the beginning. Each averages after the backward, so it takes longer than a
            step of DistributedDataParallel.
        fragments: into how many parts the parameters are divided, at most `every`. More of them make each
            synchronization shorter.
        outer_lr: the learning rate of the outer optimizer.
        outer_momentum: its momentum, in [0, 1). DiLoCo uses 0.9 for hundreds of local steps. With few of them it can
            make training diverge.
        compression: "int8" sends bytes with error feedback; "none" sends the values.
        process_group: the ranks; None: all of them.

    Raises:
        UserTypeError: `model` is no module or is wrapped by `DistributedDataParallel` or FSDP, or `optimizer` is no
            optimizer of torch.
        UserError: an option is out of range, the ranks pass different options or models, the process belongs to an
            elastic job, or something else averages gradients already. Nothing has changed then.
    """
    options = Options(every, warmup, fragments, outer_lr, outer_momentum, compression)
    return LocalSteps(model, optimizer, options, process_group)

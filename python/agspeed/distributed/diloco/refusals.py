# SPDX-License-Identifier: Apache-2.0
"""Errors for models, optimizers and calls that local steps cannot serve. Each says what to do instead."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import distributed, nn

from agspeed.devices.placement import is_sharded
from agspeed.distributed import groups
from agspeed.distributed.sharded import units_of
from agspeed.errors import UserError, UserTypeError
from agspeed.torch_compat import ddp

__all__ = ["check_call", "check_scaler", "note_optimizer", "parameters_of", "stepped_parameters"]

_known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_UNWRAPPED = (
    "Pass the module itself (model.module) to local_steps, and call it in the training loop. A script that has to call "
    "the wrapper does so within model.no_sync(), in all steps, and passes model.module to local_steps."
)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns all current parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def stepped_parameters(model: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    """Returns the parameters of the model that the optimizer steps, by name.

    Raises: UserTypeError or UserError if local steps do not fit the model, the optimizer or the process.
    """
    _check_model(model)
    _check_optimizer(optimizer)
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UserError("local_steps needs a process group: call torch.distributed.init_process_group() first.")
    if groups.membership_changes:
        raise UserError(
            "local_steps does not work in an elastic job, because ranks differ between two synchronizations, and one "
            "that joins or is lost would leave the others without a common state: start the job without --min-np, or "
            "train with DistributedDataParallel."
        )
    stepped = {id(parameter) for parameter in parameters_of(optimizer)}
    found = {name: each for name, each in model.named_parameters() if each.requires_grad and id(each) in stepped}
    _check_parameters(found, model, optimizer)
    return found


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UserTypeError(f"local_steps needs a module, and got {type(model).__name__}: pass the model to train.")
    kind = type(model).__name__
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise UserTypeError(f"{kind} averages gradients in each backward, so its steps are not local. {_UNWRAPPED}")
    if kind == "FullyShardedDataParallel" or units_of(model) or any(map(is_sharded, model.parameters())):
        raise UserTypeError(
            "local_steps needs a whole model at each rank, and this one is sharded (FSDP or DTensor): leave the "
            "sharding out, or train it without local_steps."
        )
    if any(ddp.is_replicated(part) for part in model.modules()):
        raise UserTypeError(
            "replicate() averages gradients in each backward: do not call it for a model of local_steps."
        )


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserTypeError(
            f"local_steps needs an optimizer of torch, and got {type(optimizer).__name__}: pass the one whose "
            "step() the script calls."
        )
    kind = type(optimizer).__name__
    if kind == "ZeroRedundancyOptimizer" or hasattr(optimizer, "skip_synchronize"):
        raise UserError(
            f"{kind} exchanges values with other ranks in each step: pass the plain optimizer that it wraps."
        )
    if optimizer in _known:
        raise UserError(f"this {kind} has local steps already: call local_steps once for each optimizer.")


def note_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuses the optimizer from now on."""
    _known.add(optimizer)


def _check_parameters(found: Mapping[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    own = set(map(id, model.parameters()))
    others = [each for each in parameters_of(optimizer) if id(each) not in own]
    if others:
        raise UserError(
            f"the optimizer has {len(others)} parameters that are not in the model (the first has the shape "
            f"{tuple(others[0].shape)}): pass the model that holds all of them."
        )
    if not found:
        raise UserError("the optimizer steps no parameter with requires_grad=True: there is nothing to synchronize.")
    for name, parameter in found.items():
        if not parameter.is_floating_point() or parameter.layout != torch.strided:
            raise UserError(
                f"{name} is a tensor of {parameter.dtype} and {parameter.layout}: local_steps needs dense floats."
            )


def check_scaler() -> None:
    """Raises: UserError if a `GradScaler` calls the optimizer's step, which this function is called from."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith("/amp/grad_scaler.py"):
            raise UserError(
                "GradScaler skips the steps of ranks whose gradients overflow, and all ranks of local_steps have to "
                "take equally many: train with torch.autocast(dtype=torch.bfloat16), which needs no scaler."
            )
        frame = frame.f_back


def check_call() -> None:
    """Raises: UserError if the forward that calls this belongs to a wrapper that will average gradients."""
    wrapper = ddp.active()
    if wrapper is not None and wrapper.require_backward_grad_sync and torch.is_grad_enabled():
        raise UserError(f"the model is called by a DistributedDataParallel, which averages gradients. {_UNWRAPPED}")

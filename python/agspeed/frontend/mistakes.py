# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `optimize` before anything is changed, and suggests the call that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from agspeed import config, native
from agspeed.backends import candidate_names
from agspeed.errors import UserError, UserTypeError
from agspeed.frontend import startup
from agspeed.log import warn_once
from agspeed.torch_compat.modes import watchers

_KEYWORDS_OF_TORCH_COMPILE = {
    "backend": 'backends=["inductor"] takes a list of candidates',
    "disable": 'mode="off" does nothing',
    "fullgraph": "strict=True raises where a part of the model is left to eager",
    "options": "agspeed chooses Inductor's options by itself",
}
_MODES_OF_TORCH_COMPILE = {
    "default": "auto",
    "max-autotune": "max",
    "max-autotune-no-cudagraphs": "max",
    "reduce-overhead": "auto",
}


def check_target(model: object) -> None:
    """Raises: UserTypeError if `model` is neither a module nor a function. Suggests the right call if one is likely."""
    if isinstance(model, type):
        raise UserTypeError(
            f"optimize takes a module or a step function, got the class {model.__name__}: pass an instance"
        )
    if not callable(model):
        meant = _call_that_is_meant(model)
        raise UserTypeError(f"optimize takes an nn.Module or a step function, got {describe(model)}{meant}")


def check_optimizer(optimizer: object, model: object) -> None:
    """Warns about an optimizer of another model. Raises: UserTypeError if `optimizer` is not an optimizer."""
    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        is_mode = isinstance(optimizer, str) and (optimizer in config.MODES or optimizer in _MODES_OF_TORCH_COMPILE)
        hint = f"; a mode is a keyword: mode={optimizer!r}" if is_mode else ""
        raise UserTypeError(f"optimizer must be a torch.optim.Optimizer, got {describe(optimizer)}{hint}")
    if isinstance(model, nn.Module) and not _trains_any(optimizer, model.parameters()):
        name, trained = type(optimizer).__name__, type(model).__name__
        warn_once(
            ("foreign optimizer", id(optimizer), id(model)),
            trains_another(f"{name} handed to optimize", trained),
        )


def trains_another(optimizer: str, model: str) -> str:
    """Returns the warning about an optimizer that holds no parameter of the model that it should train."""
    return (
        f"the {optimizer} holds no parameter of this {model}: it trains another model; make it from model.parameters()"
    )


def check_keywords(unknown: dict[str, object], mode: object) -> None:
    """Raises: UserTypeError for a keyword that `optimize` does not have, UserError for a mode of torch.compile."""
    for name in unknown:
        meant = _KEYWORDS_OF_TORCH_COMPILE.get(name)
        hint = f": that is torch.compile's; here {meant}" if meant else "; `agspeed config` lists all settings"
        raise UserTypeError(f"optimize has no keyword {name!r}{hint}")
    if isinstance(mode, str) and mode in _MODES_OF_TORCH_COMPILE:
        meant = _MODES_OF_TORCH_COMPILE[mode]
        raise UserError(f"mode={mode!r} is torch.compile's; here mode={meant!r} comes nearest (`agspeed config`)")


def switched_off(settings: config.Settings) -> str | None:
    """Returns why agspeed is switched off, as part of a sentence; None if it is on."""
    if not settings.disable and settings.mode != "off":
        return None
    return f"agspeed is switched off ({settings.origins['disable' if settings.disable else 'mode']})"


def check_settings(settings: config.Settings) -> None:
    """Warns about unknown variables.

    Raises: UserError for unknown backends, unusable paths, plans that cannot be replayed, and changed settings that the
    native extension has already read.
    """
    if settings.backends is not None:
        _check_backends(settings.backends, settings.origins["backends"])
    config.check_paths(settings)
    if settings.plan is not None and switched_off(settings) is None:
        _check_plan(settings.plan, settings)
    native.check_loaded()
    for sentence in settings.warnings:
        warn_once(sentence, sentence)


def describe(value: object) -> str:
    """Returns the type and value of an argument; the type alone if the value is long."""
    text = repr(value)
    is_short = len(text) <= 60 and "\n" not in text
    return f"{type(value).__name__} {text}" if is_short else type(value).__name__


def _check_plan(plan: Path, settings: config.Settings) -> None:
    from agspeed.regions.plan import candidates_of, is_plan
    from agspeed.reporting.model import load

    where = f"plan={str(plan)!r} ({settings.origins['plan']})"
    if settings.mode != "deterministic":
        raise UserError(f"{where} is replayed in mode='deterministic' only, and the mode is {settings.mode!r}.")
    found = load(plan).to_dict()
    if found["status"]["state"] == "tuning":
        raise UserError(f"{where} holds no decision: its run was still tuning.")
    chosen = found["decision"]["chosen"]
    if not is_plan(chosen):
        raise UserError(
            f"{where} says that {chosen[:80]!r} was chosen, which is not a plan: give a report of agspeed's."
        )
    _check_backends(candidates_of(chosen), where)


def _check_backends(names: Iterable[str], where: config.Origin | str) -> None:
    """Raises: UserError for unknown names. Skips the check without torch's compiler: no backend can be loaded then, and
    `optimize` leaves everything eager with a reason."""
    if startup.why_unusable(backends=True) is None:
        config.check_names("backend", names, candidate_names(), where)


def _call_that_is_meant(model: object) -> str:
    if model is None:
        return ": did a builder forget to return it?"
    if isinstance(model, torch.optim.Optimizer):
        return ": an optimizer comes second, model, optimizer = agspeed.optimize(model, optimizer)"
    if isinstance(model, torch.utils.data.DataLoader):
        return ": pass the model; the loop and its data stay as they are"
    if isinstance(model, (list, tuple, dict)):
        return ": call optimize once for each model"
    return ""


def _trains_any(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> bool:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return any(id(parameter) in held for parameter in parameters)


def leave_to_watchers(name: str) -> bool:
    """Warns once that calls of the target `name` run eagerly under the active torch modes. Returns: True."""
    modes = watchers()
    eagerly = "its own code runs, so that they see its operators; agspeed makes the other calls faster"
    warn_once(("watched", name, modes), f"{name}: under {modes} {eagerly}")
    return True

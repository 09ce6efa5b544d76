# SPDX-License-Identifier: Apache-2.0
"""Whether settings can be used, asked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agspeed import config, native
from agspeed.backends import candidate_names
from agspeed.errors import UserError
from agspeed.frontend import startup
from agspeed.log import warn_once


def switched_off(settings: config.Settings) -> str | None:
    """Why nothing is to be optimized, as part of a sentence; None where something is."""
    if not settings.disable and settings.mode != "off":
        return None
    return f"agspeed is switched off ({settings.origins['disable' if settings.disable else 'mode']})"


def check_settings(settings: config.Settings) -> None:
    """Warns of unknown variables.

    Raises: UserError for unknown backends, paths that cannot be used, plans that cannot be replayed, and settings that
    the native extension has read already and that are others now.
    """
    if settings.backends is not None:
        _check_backends(settings.backends, settings.origins["backends"])
    config.check_paths(settings)
    if settings.plan is not None and switched_off(settings) is None:
        _check_plan(settings.plan, settings)
    native.check_loaded()
    for sentence in settings.warnings:
        warn_once(sentence, sentence)


def _check_plan(plan: Path, settings: config.Settings) -> None:
    from agspeed.reporting.model import load
    from agspeed.tuning.plan import candidates_of

    where = f"plan={str(plan)!r} ({settings.origins['plan']})"
    if settings.mode != "deterministic":
        raise UserError(f"{where} is replayed in mode='deterministic' only, and the mode is {settings.mode!r}.")
    found = load(plan).to_dict()
    if found["status"]["state"] == "tuning":
        raise UserError(f"{where} holds no decision: its run was still tuning.")
    _check_backends(candidates_of(found["decision"]["chosen"]), where)


def _check_backends(names: Iterable[str], where: config.Origin | str) -> None:
    """Without torch's compiler no backend can be loaded: `optimize` leaves everything eager then, and says why."""
    if startup.why_unusable(backends=True) is None:
        config.check_names("backend", names, candidate_names(), where)

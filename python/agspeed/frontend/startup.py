# SPDX-License-Identifier: Apache-2.0
"""Loads agspeed in two halves and measures the time. The time counts as a cost of tuning of the first session.

`optimize` needs only the light half. The *machinery* (capture, compilers, gate, tuner) takes more than half a second to
load. mode="auto" loads it only after training has lasted long enough to pay for it. The time does not include torch.

This module is imported before every other module of this package. The last module of the light half calls `loaded`.
"""

from __future__ import annotations

import importlib
import sys
import time

import torch  # noqa: F401  the user's program needs it in any case: what follows is agspeed's

from agspeed import native
from agspeed.errors import UnsupportedError, UserError
from agspeed.torch_compat import dynamo, probe
from agspeed.tuning.interrupted import deferred_signals

PAYS_AFTER_S = 4.0
"""After this many seconds of training, a fifth of them pays for the machinery (0.5 to 0.8 s; runtime/tune/ledger.h)."""

_begun = time.perf_counter()
_unclaimed: list[float] = []
_failure: str | None = None


def loaded() -> None:
    """Notes that the light half is imported."""
    _unclaimed.append(time.perf_counter() - _begun)


@deferred_signals()  # if a signal handler's exception ended an import half-way, the import could not be repeated
def why_unusable(*, backends: bool = False, machinery: bool = False) -> str | None:
    """Returns why nothing can be captured in this process, or None: torch's compiler, the backends or the machinery
    cannot be loaded or are not as expected.

    A failure is final, because a second import of a half-imported module fails for another reason. Raises: UserError
    for settings that the native extension refuses.
    """
    global _failure
    if _failure is None:
        try:
            dynamo.load()
            _require_what_all_need()
            if backends:
                importlib.import_module("agspeed.backends").candidate_names()
            if machinery:
                load_machinery()
                _failure = _why_no_extension()
        except UserError:
            raise
        except UnsupportedError as error:
            _failure = f"{error}: {probe.remedy()}"
        except Exception as error:
            _failure = f"torch's compiler cannot be loaded: {type(error).__name__}: {error}"
    return _failure


def has_machinery() -> bool:
    """Returns whether the machinery is loaded."""
    return "agspeed.frontend.machinery" in sys.modules


@deferred_signals()
def why_not_loaded() -> str | None:
    """Imports the machinery. Returns: why that failed, or None. Raises: as `why_unusable`."""
    try:
        load_machinery()
    except UserError:
        raise
    except UnsupportedError as error:
        return f"{error}: {probe.remedy()}"
    except Exception as error:
        return f"the code for tuning could not be loaded: {type(error).__name__}: {error}"
    return _why_no_extension()


def load_machinery() -> None:
    """Imports the machinery; returns at once if it is loaded.

    Raises: what the import of torch's internals raises; UnsupportedError if these are not as expected.
    """
    begun = time.perf_counter()
    _require_what_all_need()
    from agspeed.frontend import machinery as machinery

    _require_what_all_need()  # check the parts of torch that were just loaded
    _unclaimed.append(time.perf_counter() - begun)


def claim() -> float:
    """Returns the seconds spent on loading since the last call."""
    seconds = sum(_unclaimed)
    _unclaimed.clear()
    return seconds


def _why_no_extension() -> str | None:
    return None if native.load() is not None else f"nothing is tuned, models train eagerly: {native.why_missing()}"


def _require_what_all_need() -> None:
    """Raises: UnsupportedError if an indispensable part of this torch is not as expected."""
    if (found := probe.misfit(probe.NEEDED_BY_ALL)) is not None:
        raise UnsupportedError(found)

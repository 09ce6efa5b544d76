# SPDX-License-Identifier: Apache-2.0
"""What loading agspeed costs, torch excepted: a cost of tuning, charged to the process's first session.

There are two halves. `optimize` needs a light one; the *machinery* (capture, compilers, gate, tuner) takes more than
half a second, which mode="auto" spends only once training has lasted long enough to pay for it.

Imported before every other module of this package; `loaded` is called when the last one of the light half is there.
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
"""Seconds of training, a fifth of which pays for the machinery (0.5 to 0.8 s; runtime/tune/ledger.h)."""

_begun = time.perf_counter()
_unclaimed: list[float] = []
_failure: str | None = None


def loaded() -> None:
    """The light half is imported."""
    _unclaimed.append(time.perf_counter() - _begun)


@deferred_signals()  # an import that a handler's exception ends half-way could not be repeated
def why_unusable(*, backends: bool = False, machinery: bool = False) -> str | None:
    """Why nothing can be captured here: torch's compiler, the backends or the machinery cannot be loaded, or are not
    as expected; or None.

    What failed once stays so: a second import of a half-imported module fails for another reason. Raises: UserError
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
    """True when loading the machinery costs nothing more."""
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
        return f"what tunes could not be loaded: {type(error).__name__}: {error}"
    return _why_no_extension()


def load_machinery() -> None:
    """Imports the machinery; at once where that has been done.

    Raises: what the import of torch's internals raises, UnsupportedError where these are not as expected.
    """
    begun = time.perf_counter()
    _require_what_all_need()
    from agspeed.frontend import machinery as machinery

    _require_what_all_need()  # of what was loaded just now
    _unclaimed.append(time.perf_counter() - begun)


def claim() -> float:
    """Seconds that loading took since somebody last asked."""
    seconds = sum(_unclaimed)
    _unclaimed.clear()
    return seconds


def _why_no_extension() -> str | None:
    return None if native.load() is not None else f"nothing is tuned, models train eagerly: {native.why_missing()}"


def _require_what_all_need() -> None:
    """Raises: UnsupportedError where a part of this torch that nothing works without is not as expected."""
    if (found := probe.misfit(probe.NEEDED_BY_ALL)) is not None:
        raise UnsupportedError(found)

# SPDX-License-Identifier: Apache-2.0
"""The public functions: optimize, restore, report, status, wait, paused."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from agspeed import config
from agspeed.devices import placement
from agspeed.distributed.codecs.in_use import codec_of
from agspeed.distributed.stragglers import verdict_of
from agspeed.distributed.stragglers.sentences import sentence
from agspeed.elastic.attachments import attach
from agspeed.errors import UserError
from agspeed.frontend import elastic_plans, live_sessions, mistakes, startup
from agspeed.frontend.optimizers.search import SEARCH
from agspeed.frontend.optimizers.session import optimizer_session
from agspeed.frontend.session import Session, session_of
from agspeed.frontend.target import FunctionTarget, Target, UserCall, target_of
from agspeed.log import logger, set_level, warn_once
from agspeed.reporting import summary
from agspeed.torch_compat import dynamo, misfits, modules
from agspeed.tuning.memory.retained import RETAINED

if TYPE_CHECKING:
    from agspeed.reporting.model import Report

ModuleT = TypeVar("ModuleT", bound=nn.Module)
OwnT = TypeVar("OwnT")


_DECORATES: Any = object()
"""The default of `model`: the call returns a decorator."""
_why_eager: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""{target passed to `optimize`: why it has no session}."""


class Status(str):
    """ "tuning", "tuned" or "eager", with a `reason`. Printing it shows both, and the sentences of `optimizers`,
    `memory`, `stragglers` and `codec`."""

    reason: str
    optimizers: tuple[str, ...]
    """How the steps of the optimizers run that train the model: a sentence about each, without its full stop."""
    memory: str
    """A sentence about the memory of freed tensors that this process retains, without its full stop. "" if it retains
    none."""
    stragglers: tuple[str, ...]
    """A sentence for each rank that holds the others up now, without its full stop."""
    codec: str
    """A sentence about the codec of `agspeed.distributed.hooks` that sends the gradients, without its full stop. "" if
    there is none."""

    def __new__(
        cls,
        state: str,
        reason: str,
        optimizers: Iterable[str] = (),
        stragglers: Iterable[str] = (),
        memory: str = "",
        codec: str = "",
    ) -> Status:
        status = super().__new__(cls, state)
        status.reason, status.memory, status.codec = reason, memory, codec
        status.optimizers, status.stragglers = tuple(dict.fromkeys(optimizers)), tuple(stragglers)
        return status

    def __str__(self) -> str:
        text = f"{super().__str__()}: {self.reason}" if self.reason else super().__str__()
        return ". ".join(
            (text, *self.optimizers, *filter(None, [self.memory]), *self.stragglers, *filter(None, [self.codec]))
        )


def optimize(
    model: Any = _DECORATES,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    mode: str | None = None,
    backends: Sequence[str] | None = None,
    dynamic: bool | None = None,
    numerics: str | None = None,
    budget_s: float | None = None,
    plan: str | PathLike[str] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    report: str | PathLike[str] | None = None,
    strict: bool | None = None,
    **unknown: object,
) -> Any:
    """Makes training of `model` faster, or leaves it as it is.

    The module is patched in place and returned; `restore` undoes it. A step function (one that computes a loss, calls
    ``backward`` and steps an optimizer) is wrapped: ``@agspeed.optimize`` or ``step = agspeed.optimize(step)``.

    Args:
        model: an ``nn.Module`` on its device, before or after a DDP wrap, after `fully_shard`; or a step function.
        optimizer: the module's optimizer. Then the call returns ``(model, optimizer)``. The step of an optimizer of
            torch may be fused, unless other ranks train with this one. Optimizers that step the module's parameters are
            found in any case, unless the setting ``tune_optimizer`` is off.
        mode: "auto" tunes within an earned budget; "max" tunes everything on the first steps; "fast-start" uses earlier
            decisions and candidates that compile within about a second; "deterministic" does not measure times; "off"
            does nothing.
        backends: names of the candidates to consider, in order of preference; None means all.
        dynamic: as for ``torch.compile``: None decides automatically whether sizes vary.
        numerics: "standard" compares candidates with eager's own error; "exact" accepts only bit-equal candidates;
            "off" checks nothing.
        budget_s: the most seconds that tuning may add to training.
        plan: a decision saved by ``agspeed.report(x).save``, to be replayed without timing; needs "deterministic".
        cache_dir: folder for decisions and compiled code.
        report: path of a report (.json or .html) that is written when tuning ends and at exit.
        strict: raise at the end of the step if a candidate fails or is refused, or if a frame is left to eager. Raise
            in a backward if replicas differ. Under numerics="exact", a candidate that is not bit-equal is not an error.

    A missing keyword is taken from the environment, then from agspeed.toml, then from the defaults (`agspeed config`).
    If the module is already optimized and a keyword has a new value, it is tuned again.

    Raises: UserError for wrong types, values, names or paths, and for a new setting of a step function that is already
    optimized. UnsupportedError if `strict` is set and this torch, or the extension built for it, does not fit. In both
    cases nothing has been changed.
    """
    keywords: dict[str, Any] = {
        "mode": mode,
        "backends": backends,
        "dynamic": dynamic,
        "numerics": numerics,
        "budget_s": budget_s,
        "plan": plan,
        "cache_dir": cache_dir,
        "report": report,
        "strict": strict,
    }
    mistakes.check_keywords(unknown, mode)
    if model is _DECORATES:
        return lambda decorated: optimize(decorated, optimizer, **keywords)
    settings = config.resolve(keywords)
    mistakes.check_target(model)
    mistakes.check_optimizer(optimizer, unwrapped(model))
    mistakes.check_settings(settings)
    if settings.debug != "warn":  # keep the application's own level unless a setting changes it
        set_level(settings.debug)
    changed = _changed_keywords(model, settings, keywords)
    optimized = (
        _optimize_module(model, settings, changed)
        if isinstance(model, nn.Module)
        else _optimize_function(model, settings, changed)
    )
    if optimizer is None:
        return optimized
    if session_of(unwrapped(optimized)) is None and startup.why_not_loaded() is not None:
        return optimized, optimizer  # the model's session would load the code that tunes optimizers
    if mistakes.switched_off(settings) is None and optimizer_session(optimizer) is None:
        session = session_of(unwrapped(optimized))
        SEARCH.tune(optimizer, [session] if session is not None else [], settings)
    return optimized, optimizer


def restore(model: ModuleT, optimizer: torch.optim.Optimizer | None = None) -> ModuleT:
    """Undoes `optimize` and returns the user's own object. Returns a model that was never optimized as it is.

    Args:
        optimizer: an optimizer that was passed to `optimize` with a model that stayed eager. The optimizers of an
            optimized model get their own steps back in any case.
    """
    if optimizer is not None and (tuned := optimizer_session(optimizer)) is not None:
        tuned.close()
    session = session_of(unwrapped(model))
    if session is not None:
        session.close()
        _stays_eager(unwrapped(model), "agspeed.restore has undone optimize")
        if isinstance(session.target, FunctionTarget):
            return session.target.eager  # type: ignore[return-value]
    return model


def status(model: object) -> Status:
    """Returns whether `model` is being tuned, was tuned, or runs eagerly, with the reason."""
    session = _session_of(model)
    if session is None:
        plain = unwrapped(model)
        sentence_of_codec = _codec_sentence(plain if isinstance(plain, nn.Module) else None)
        return Status("eager", _reason_of(plain) or "not optimized", codec=sentence_of_codec)
    module = getattr(session.target, "module", None)
    optimizers = [summary.optimizer(tuned.name, tuned.chosen, tuned.reason) for tuned in session.optimizers]
    verdict = verdict_of(module)
    stragglers = [sentence(finding) for finding in verdict.lasting] if verdict is not None else []
    memory = RETAINED.sentence()
    return Status(session.state, session.current_reason, optimizers, stragglers, memory, _codec_sentence(module))


def _codec_sentence(module: nn.Module | None) -> str:
    codec = codec_of(module)
    return codec.sentence() if codec is not None else ""


def wait(model: object, timeout_s: float | None = None) -> Status:
    """Waits for background compiles and returns the status. Does not wait for trials, which need training steps."""
    session = _session_of(model)
    if session is not None:
        session.wait(timeout_s)
    return status(model)


def report(model: object) -> Report:
    """Returns the current autotune report of `model`: ``.to_dict()``, ``.save(path)``, ``str()``.

    For a module under ``torch.compile(backend="agspeed")`` it covers all graphs compiled with the same options.

    Raises: UserError if `model` was never passed to `optimize`.
    """
    from agspeed.frontend.session_report import make_idle_report, make_report

    inner = unwrapped(model)
    session = _session_of(model)
    if session is not None:
        return make_report(session)
    if (reason := _reason_of(inner)) is None:
        raise UserError(f"this {mistakes.describe(model)} is not optimized: call agspeed.optimize first")
    return make_idle_report(getattr(inner, "__name__", type(inner).__name__), reason)


def _session_of(model: object) -> Session | None:
    """Returns the session that `optimize` or torch.compile's backend opened for `model`, or None."""
    inner = unwrapped(model)
    session = session_of(inner)
    if session is not None or not isinstance(inner, nn.Module) or not is_torch_compiled(inner):
        return session
    from agspeed.frontend.dynamo_backend import session_of_torch_compiled

    return session_of_torch_compiled(inner)


def paused() -> AbstractContextManager[None]:
    """``with agspeed.paused():`` runs every optimized model eagerly inside the block."""
    return live_sessions.paused()


def _changed_keywords(model: object, settings: config.Settings, keywords: dict[str, object]) -> list[str]:
    """Returns the passed keywords whose values differ from the settings with which `model` is already optimized."""
    session = session_of(unwrapped(model))
    passed = [name for name, value in keywords.items() if value is not None]
    if session is None:
        return []
    return [name for name in passed if getattr(session.settings, name) != getattr(settings, name)]


def _optimize_module(module: nn.Module, settings: config.Settings, changed: list[str]) -> nn.Module:
    inner = unwrapped(module)
    if (session := session_of(inner)) is not None:
        if not changed:
            return module
        logger.info("%s begins anew: %s changed", type(inner).__name__, ", ".join(changed))
        session.close()
    if (reason := mistakes.switched_off(settings)) is not None:
        _stays_eager(inner, reason)
        return module
    if is_torch_compiled(inner):
        _stays_eager(inner, "torch.compile has compiled it already")
        warn_once(
            ("compiled", id(inner)),
            f"{type(inner).__name__} is already compiled by torch.compile and is left as it is; "
            "pass the original module to agspeed.optimize instead",
        )
        return module
    if next(inner.parameters(), None) is None:
        _stays_eager(inner, "it has no parameters: there is nothing to train")
        return module
    if (reason := _why_unusable(settings) or _why_not_sharded(inner)) is not None:
        return _left_by_torch(inner, reason, settings, module)
    try:
        target = target_of(inner)
        home = placement.home_of(target.tensors())
        reason = placement.naming(placement.why_eager(target.tensors(), home), inner)
    except AttributeError as error:  # private parts of torch's fully_shard may have changed
        reason = f"the state of this torch's fully_shard is not known here: {error}"
    if reason is not None:
        _stays_eager(inner, reason)
        logger.warning("%s: eager (%s)", type(inner).__name__, reason)
        return module
    _open_session(target, elastic_plans.PLANS.settings_for(inner, settings), home.type)
    return module


def _optimize_function(function: UserCall, settings: config.Settings, changed: list[str]) -> UserCall:
    if session_of(function) is not None:
        if changed:
            raise UserError(
                f"{getattr(function, '__name__', 'this function')} is optimized already, with another "
                f"{' and '.join(changed)}: optimize(agspeed.restore(function), ...) makes a new one"
            )
        return function
    if (reason := mistakes.switched_off(settings)) is not None:
        _stays_eager(function, reason)
        return function
    if (reason := _why_unusable(settings)) is not None:
        return _left_by_torch(function, reason, settings, function)
    target = FunctionTarget(function)
    _open_session(target, settings, "cpu")
    return target.wrapper


def _open_session(target: Target, settings: config.Settings, device: str) -> None:
    """Opens a session. Raises: UnsupportedError if `strict` is set and this torch does not fit some candidates."""
    if lost := misfits.of_candidates(settings.backends, device):
        misfits.tell(target.name, lost, strict=settings.strict, plan="tuned without them")
    live_sessions.open_session(target, settings).history.lost = lost


def _why_unusable(settings: config.Settings) -> str | None:
    return startup.why_unusable(machinery=settings.mode != "auto") or misfits.of_extension()


def _why_not_sharded(module: nn.Module) -> str | None:
    return misfits.of_shards() if any(map(placement.is_sharded, module.parameters())) else None


def _left_by_torch(target: object, reason: str, settings: config.Settings, returned: OwnT) -> OwnT:
    """Returns `returned` unchanged, because this torch does not fit. Raises: UnsupportedError if `strict` is set."""
    misfits.tell(getattr(target, "__name__", type(target).__name__), reason, strict=settings.strict)
    _stays_eager(target, reason)
    return returned


def _stays_eager(target: object, reason: str) -> None:
    with suppress(TypeError):  # the object has no hash or no weak references: its status has no reason
        _why_eager[target] = reason


def _reason_of(target: object) -> str | None:
    try:
        return _why_eager.get(target)
    except TypeError:
        return None


def was_passed(model: object) -> bool:
    """Returns whether `model` was passed to `optimize`, even if it stays eager."""
    inner = unwrapped(model)
    return session_of(inner) is not None or _reason_of(inner) is not None


def unwrapped(model: object) -> Any:
    """Returns the module inside DistributedDataParallel or DataParallel; any other object as it is."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, wrappers) else model


def is_torch_compiled(module: nn.Module) -> bool:
    """Returns whether `torch.compile`, ``module.compile()`` or `optimize` replaces the calls of `module`."""
    return dynamo.is_compiled(module) or modules.entry(module) is not None


attach("plan", elastic_plans.PLANS)
startup.loaded()

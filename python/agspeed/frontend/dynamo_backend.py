# SPDX-License-Identifier: Apache-2.0
"""Implements ``torch.compile(model, backend="agspeed", mode=..., options=...)`` with the same tuning as `optimize`.

torch.compile owns capture here, so there is no plan that runs the original module: the tuner's arm 0 runs the captured
graph operator by operator. All graphs compiled with equal options belong to one session. It finds the limits of
training steps in the same way as other sessions.
"""

from __future__ import annotations

from torch import fx, nn

from agspeed import config
from agspeed.frontend import startup
from agspeed.frontend.live_sessions import open_session
from agspeed.frontend.mistakes import check_settings, switched_off
from agspeed.frontend.session import Session
from agspeed.frontend.target import CompiledFramesTarget, UserCall
from agspeed.torch_compat import misfits

_sessions: dict[str, Session] = {}
"""{the options of torch.compile: the session of all graphs with these options}."""


def agspeed_backend(
    gm: fx.GraphModule,
    example_inputs: list[object],
    *,
    mode: str | None = None,
    options: dict[str, object] | None = None,
) -> UserCall:
    """The Dynamo backend. `options` takes the keywords of `agspeed.optimize`. Raises: as `agspeed.optimize`."""
    keywords = {**({"mode": mode} if mode else {}), **(options or {})}
    settings = config.resolve(keywords)
    check_settings(settings)
    if switched_off(settings) is not None:
        return gm.forward
    if (reason := startup.why_unusable(machinery=True)) is not None:
        misfits.tell("torch.compile", reason, strict=settings.strict)
        return gm.forward
    return _session_for(repr(sorted(keywords.items())), settings).adopt_graph(gm, example_inputs)


def session_of_torch_compiled(module: nn.Module) -> Session | None:
    """Returns the session whose graphs have run with a parameter of `module`, or None."""
    own = set(map(id, module.parameters()))
    found = (s for s in _sessions.values() if any(id(parameter) in own for parameter in s.target.parameters()))
    return next(found, None)


def _session_for(key: str, settings: config.Settings) -> Session:
    if key not in _sessions:
        _drop_unused()
        target = CompiledFramesTarget()
        if lost := misfits.of_candidates(settings.backends, "cpu"):
            misfits.tell(target.name, lost, strict=settings.strict, plan="tuned without them")
        _sessions[key] = open_session(target, settings)
        _sessions[key].history.lost = lost
    return _sessions[key]


def _drop_unused() -> None:
    """Closes the sessions of which torch.compile has dropped all graphs."""
    for key, session in list(_sessions.items()):
        if not any(region.is_in_use for region in session.regions):
            session.save_report()
            session.close()
            del _sessions[key]

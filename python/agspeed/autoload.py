# SPDX-License-Identifier: Apache-2.0
"""What happens where torch is imported: our backend becomes known, and scripts that ask for nothing get what the
settings say, `stands_in_for` (AGSPEED_AS) and `ddp` (AGSPEED_DDP).

torch calls `register` by the wheel's entry point "torch.backends". In a checkout, or with
TORCH_DEVICE_BACKEND_AUTOLOAD=0, `import agspeed` does it: at once where torch.distributed is loaded, else as soon as it
is, so that importing agspeed stays cheap. Nothing here raises: a script that cannot have ours keeps what it names.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

from agspeed.distributed import register as register_backend
from agspeed.when_loaded import when_loaded

__all__ = ["register", "register_once_loaded"]


def register() -> None:
    """See the module's text. Repeated calls change nothing."""
    register_backend()
    if {"AGSPEED_AS", "AGSPEED_DDP"} & os.environ.keys() or _may_have_settings_file():
        _do_as_settings_say()


def register_once_loaded() -> None:
    """Registers now if torch.distributed is loaded, else when it has been."""
    when_loaded("torch.distributed", register)


def _may_have_settings_file() -> bool:
    """Whether `config.find_files` may find one, told in microseconds: nothing else is loaded while torch is."""
    folders = [Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "agspeed")]
    with contextlib.suppress(OSError):  # the working directory is gone
        folders += [Path.cwd(), *Path.cwd().parents]
    return any(os.path.exists(folder / "agspeed.toml") for folder in folders)


def _do_as_settings_say() -> None:
    from agspeed import config
    from agspeed.log import logger, warn_once

    try:
        settings = config.resolve()
        if settings.stands_in_for is not None:
            from agspeed.distributed import stand_in

            stand_in.install()
        if settings.ddp is not None:
            when_loaded("torch.nn.parallel.distributed", _tune_every_wrapper)
    except Exception as error:
        warn_once(("autoload",), f"scripts run as if AGSPEED_AS and AGSPEED_DDP were not set: {error}")
        logger.debug("nothing was installed", exc_info=True)


def _tune_every_wrapper() -> None:
    """Each DistributedDataParallel that is made from now on has its bucket layout tuned; nothing is compiled."""
    from torch.nn.parallel import DistributedDataParallel

    init = DistributedDataParallel.__init__
    if hasattr(init, "tunes_layouts"):
        return

    @functools.wraps(init)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _tune_layout(self)

    make.tunes_layouts = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = make  # type: ignore[method-assign]


def _tune_layout(wrapper: Any) -> None:
    from agspeed.frontend.api import optimize
    from agspeed.frontend.session import session_of
    from agspeed.log import warn_once

    try:
        if session_of(wrapper.module) is None:
            optimize(wrapper, backends=["eager"])
    except Exception as error:
        warn_once(("autoload", "ddp"), f"the buckets of a DistributedDataParallel are not tuned: {error}")

# SPDX-License-Identifier: Apache-2.0
"""Registers agspeed's backend with torch.distributed while torch is imported.

It also applies the settings `stands_in_for` (AGSPEED_AS), `ddp` (AGSPEED_DDP) and `auto` (AGSPEED_AUTO) to scripts that
do not use agspeed themselves. `init_process_group` then finds its rank under srun and mpirun, too. torch calls
`register` through the wheel's entry point "torch.backends". In a checkout, or with TORCH_DEVICE_BACKEND_AUTOLOAD=0,
`import agspeed` calls it: at once if torch.distributed is loaded, else as soon as it is loaded. This keeps importing
agspeed cheap. `register` does not raise: after an error, a script runs without the settings.
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

_VARIABLES = {"AGSPEED_AS", "AGSPEED_AUTO", "AGSPEED_DDP"}


def register() -> None:
    """Registers the backend and applies the settings. Repeated calls change nothing."""
    register_backend()
    _find_rank_under_any_launcher()
    if _VARIABLES & os.environ.keys() or _may_have_settings_file():
        _do_as_settings_say()


def register_once_loaded() -> None:
    """Registers now if torch.distributed is loaded, else right after it was loaded."""
    when_loaded("torch.distributed", register)


def _find_rank_under_any_launcher() -> None:
    """Lets `init_process_group` find its rank under srun, mpirun and all other launchers that hvd.init() knows."""
    from torch import distributed

    from agspeed.torch_compat import job_store

    if distributed.is_available():
        job_store.set_variables_before_use(_set_rank_variables)


def _set_rank_variables() -> None:
    """Sets torchrun's variables if another launcher has started this process. Raises: UserError if it contradicts
    itself, or does not say where the ranks meet."""
    from agspeed.horovod import environment

    os.environ.update(environment.torchruns_variables())


def _may_have_settings_file() -> bool:
    """Whether `config.find_files` may find a file. Takes microseconds and imports nothing: torch is being imported."""
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
        if settings.auto and not settings.disable and settings.mode != "off":
            when_loaded("torch.optim.optimizer", _search_for_every_model)
    except Exception as error:
        warn_once(("autoload",), f"scripts run as if {', '.join(sorted(_VARIABLES))} were not set: {error}")
        logger.debug("nothing was installed", exc_info=True)


def _tune_every_wrapper() -> None:
    """Makes every DistributedDataParallel constructed from now on tune its bucket layout. Compiles nothing."""
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


def _search_for_every_model() -> None:
    """Makes every optimizer constructed from now on start the search for its model."""
    from torch.optim import Optimizer

    init = Optimizer.__init__
    if hasattr(init, "starts_search"):
        return

    @functools.wraps(init)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _search_for_model(self)

    make.starts_search = True  # type: ignore[attr-defined]
    Optimizer.__init__ = make  # type: ignore[method-assign]


def _search_for_model(optimizer: Any) -> None:
    from agspeed.log import warn_once

    try:
        from agspeed.frontend.unedited import SEARCH

        SEARCH.add(optimizer)
    except Exception as error:
        warn_once(("autoload", "auto"), f"models are trained as if AGSPEED_AUTO were not set: {error}")

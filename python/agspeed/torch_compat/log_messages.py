# SPDX-License-Identifier: Apache-2.0
"""Messages that loggers give once, such as transformers' `warning_once`: Dynamo can leave them out of its graphs.

All needs exist since torch 2.11. Threads: as for Dynamo itself, whose settings change.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from unittest import mock

from agspeed.torch_compat.part import Part

PART = Part(
    "log_messages",
    __name__,
    needs=(
        "torch._dynamo.config.ignore_logging_functions",
        "torch._dynamo.config.patch",
        "torch._dynamo.utils._get_dynamo_config_for_logging",
    ),
    lost="models whose code logs are captured in several graphs, which are not compared with the models' own code",
)


@contextlib.contextmanager
def left_out(is_wanted: bool) -> Iterator[None]:
    """Inside the block, if `is_wanted`, Dynamo leaves calls of loggers' cached methods out of its graphs, which stay
    whole. The methods have names that end in "_once". transformers adds them to `logging.Logger`."""
    methods = vars(logging.Logger).items()
    once = {method for name, method in methods if name.endswith("_once") and hasattr(method, "cache_info")}
    if not (is_wanted and once) or PART.misfit(may_import=True) is not None:
        yield
        return
    from torch._dynamo import config, utils

    # Dynamo logs its settings as JSON after each compile. In torch 2.11 it fails at functions among them, and 2.15
    # leaves this setting out.
    settings, users = utils._get_dynamo_config_for_logging, config.ignore_logging_functions

    def users_settings() -> str | None:
        with config.patch(ignore_logging_functions=users):
            return settings()

    with (
        config.patch(ignore_logging_functions=once | users),
        mock.patch.object(utils, "_get_dynamo_config_for_logging", users_settings),
    ):
        yield

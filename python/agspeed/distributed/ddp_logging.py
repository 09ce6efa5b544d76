# SPDX-License-Identifier: Apache-2.0
"""Makes DDP's logging data name the backend "agspeed"; torch calls every backend that is not its own "custom"."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from agspeed.distributed.groups import find
from agspeed.torch_compat import ddp

__all__ = ["name_backend"]


@functools.cache
def name_backend() -> None:
    """Names the backend from now on. Repeated calls change nothing."""
    ddp.amend_logging_data(_naming_ours)


def _naming_ours(original: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    @functools.wraps(original)
    def named(self: Any) -> dict[str, Any]:
        data = original(self)
        if data.get("backend_name") == "custom" and find(self.process_group) is not None:
            data["backend_name"] = "agspeed"
        return data

    return named

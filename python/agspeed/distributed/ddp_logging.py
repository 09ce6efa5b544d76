# SPDX-License-Identifier: Apache-2.0
"""DDP's logging data names the backend "agspeed"; torch files every backend that is not its own under "custom"."""

from __future__ import annotations

import functools
from typing import Any

from agspeed.distributed.groups import find

__all__ = ["name_backend"]


@functools.cache
def name_backend() -> None:
    """From now on. Repeated calls change nothing."""
    from torch.nn.parallel import DistributedDataParallel

    original: Any = DistributedDataParallel._get_ddp_logging_data

    @functools.wraps(original)
    def named(self: Any) -> dict[str, Any]:
        data: dict[str, Any] = original(self)
        if data.get("backend_name") == "custom" and find(self.process_group) is not None:
            data["backend_name"] = "agspeed"
        return data

    DistributedDataParallel._get_ddp_logging_data = named  # type: ignore[method-assign]

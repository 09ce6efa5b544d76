# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of one node, on this host and for one test module."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

_spec = importlib.util.find_spec("ray")
WHY_NONE = (
    None
    if _spec is not None and _spec.origin is not None  # a folder of that name has no origin
    else "Ray is not in this environment: `make test-ray` installs it in another one"
)
START_S = 300  # a busy machine starts Ray's processes slowly
_MEMORY_BYTES = 80 << 20
_VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # Ray would write one into the user's home folder
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(START_S),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_port_wait_time_s": str(START_S),
    "RAY_worker_niceness": "0",  # Ray gives workers a low priority otherwise
}


@contextlib.contextmanager
def cluster(variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs a cluster of two CPUs for the length of the block. Its processes inherit `variables`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (_VARIABLES | dict(variables or {})).items():
            patch.setenv(name, value)
        import ray  # reads the variables

        try:
            _start(ray)
            yield
        finally:
            ray.shutdown()


def _start(ray: Any) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            ray.init(
                num_cpus=2,
                num_gpus=2,
                include_dashboard=False,
                object_store_memory=_MEMORY_BYTES,
                log_to_driver=False,
            )
            return
        except Exception as error:  # Ray's own limit of 30 s cannot be set, and raises no type of its own
            if "timed out during startup" not in str(error) or time.monotonic() > until:
                raise
            ray.shutdown()

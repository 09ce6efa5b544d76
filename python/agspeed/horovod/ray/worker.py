# SPDX-License-Identifier: Apache-2.0
"""The process of one rank: an actor of Ray, which `workers.py` starts.

Threading: Ray calls one method at a time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agspeed.horovod import alias
from agspeed.launch import job_key

__all__ = ["Seat", "Worker"]


@dataclass(frozen=True)
class Seat:
    """Where a worker runs.

    Attributes:
        node: Ray's id of the node. Two nodes may share a host.
        address: the node's address, as Ray uses it.
        pid: the worker's process.
        port: a port of the host that is free at the moment.
        gpus: the GPUs that Ray has given to the worker.
    """

    node: str
    address: str
    pid: int
    port: int
    gpus: tuple[str, ...]


class Worker:
    """A rank. It becomes one by `join`, and runs functions then."""

    def __init__(self) -> None:
        self._executable: Any = None

    def seat(self) -> Seat:
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Seat(
            node=ray.get_runtime_context().get_node_id(),
            address=address,
            pid=os.getpid(),
            port=port,
            gpus=tuple(str(each) for each in ray.get_gpu_ids()),
        )

    def join(self, variables: Mapping[str, str], key: str, has_alias: bool) -> None:
        """Makes this process a rank.

        Args:
            variables: environment variables with the rank, and with the place where ranks find each other.
            key: the job's key; empty if the variables or this process's environment have one.
            has_alias: whether `import horovod` finds agspeed.horovod.
        """
        os.environ.update(variables)
        if key:
            # The worker's process keeps the descriptor open until it ends.
            os.environ["AGSPEED_JOB_KEY_FILE"] = f"/proc/self/fd/{job_key.in_memory(key)}"
        if has_alias:
            alias.install_alias()

    def make_executable(self, kind: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Makes the object that `execute` passes to functions."""
        self._executable = kind(*args, **kwargs)

    def execute(self, function: Callable[[Any], Any]) -> Any:
        return function(self._executable)

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

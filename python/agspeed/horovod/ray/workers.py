# SPDX-License-Identifier: Apache-2.0
"""The actors of one job on Ray: reserves their places, starts them, gives them their ranks, and collects results.

The ranks of one node are consecutive. Rank 0's node has the port at which all ranks find each other.

Threading and ownership: one thread uses a `Workers`, which owns the actors, and the placement group if it has made it.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from agspeed.errors import UserError
from agspeed.horovod import alias
from agspeed.horovod.exceptions import HorovodInternalError
from agspeed.horovod.ray.worker import Seat, Worker
from agspeed.launch import job_key, placement
from agspeed.launch.hosts import Host

__all__ = ["Request", "WorkerDiedError", "Workers", "load_ray", "rank_variables"]

_NOTICE_S = 3
"""Ray reports a lost process some time after the other ranks have noticed the loss."""
_ADDRESS = re.compile(r"\bip[=:] ?([0-9A-Fa-f.:]+)")
_MOST_SHOWN = 400


class WorkerDiedError(RuntimeError):
    """The process of a worker has ended, or its node is lost."""


@dataclass(frozen=True)
class Request:
    """What to start.

    Attributes:
        num_workers: the number of ranks.
        workers_per_host: if set, each node gets this number of ranks.
        cpus, gpus: for each rank. Fractions share a device.
        uses_current_group: takes the places of the placement group in which the caller runs, if there is one.
        group_timeout_s, start_timeout_s: limits for the cluster to find the places, and for the workers to start.
    """

    num_workers: int
    workers_per_host: int | None
    cpus: float
    gpus: float
    uses_current_group: bool
    group_timeout_s: float
    start_timeout_s: float

    def bundles(self) -> list[dict[str, float]]:
        """The resources to reserve: a bundle for each rank, or for each node if the ranks of a node are counted."""
        each = self.workers_per_host or 1
        bundle = {"CPU": self.cpus * each} | ({"GPU": self.gpus * each} if self.gpus else {})
        return [dict(bundle) for _ in range(self.num_workers // each)]


def load_ray() -> ModuleType:
    """Returns Ray. Raises: UserError if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(f"agspeed.horovod.ray needs Ray ({error}): pip install 'agspeed[ray]'.") from None


class Workers:
    """Running workers, by rank."""

    def __init__(self, request: Request, variables: Mapping[str, str]) -> None:
        """Starts the workers, with `variables` in their environment.

        Raises: TimeoutError if the cluster has no room, or workers do not start in time. WorkerDiedError.
        Nothing is left running then.
        """
        self._ray = load_ray()
        self._request = request
        self._own_group: Any = None
        self._actors: list[Any] = []
        self._seats: list[Seat] = []
        try:
            self._start(request)
            self._join(variables)
        except BaseException:
            self.close()
            raise

    @property
    def actors(self) -> Sequence[Any]:
        return self._actors

    def close(self) -> None:
        """Ends the workers. A second call does nothing."""
        actors, self._actors = self._actors, []
        for actor in actors:
            self._ray.kill(actor)
        group, self._own_group = self._own_group, None
        if group is not None:
            self._ray.util.remove_placement_group(group)

    def call(self, method: str, *args: Any) -> list[Any]:
        """Starts a method at all workers. Returns Ray's references to the results, by rank."""
        return [getattr(actor, method).remote(*args) for actor in self._actors]

    def collect(self, references: Sequence[Any], during: str, timeout_s: float | None = None) -> list[Any]:
        """Waits for results, by rank, and returns them.

        Raises: the first exception of a worker's function. WorkerDiedError. TimeoutError. The other workers go on.
        """
        results: dict[Any, Any] = {}
        for reference in self._finished(references, during, timeout_s):
            rank = references.index(reference)
            try:
                results[rank] = self._ray.get(reference)
            except self._ray.exceptions.RayActorError as error:
                raise self._death(rank, during, error) from None
            except HorovodInternalError:  # probably because another worker died
                others = [each for each in references if each != reference]
                self._raise_death(references, others, during)
                raise
        return [results[rank] for rank in range(len(references))]

    def _finished(self, references: Sequence[Any], during: str, timeout_s: float | None) -> Iterator[Any]:
        waiting = list(references)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while waiting:
            left = None if until is None else max(0, until - time.monotonic())
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=left)
            if not done:
                late = [self._name(references.index(each)) for each in waiting]
                raise TimeoutError(
                    f"{late[0]} has not finished {during} within {timeout_s:g} s (late workers: {len(late)}); look at "
                    "its node, or pass more seconds to create_settings(timeout_s=)."
                )
            yield from done

    def _raise_death(self, references: Sequence[Any], others: Sequence[Any], during: str) -> None:
        done, _ = self._ray.wait(list(others), num_returns=len(others), timeout=_NOTICE_S)
        for reference in done:
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayActorError as error:
                raise self._death(references.index(reference), during, error) from None
            except Exception:  # another rank that noticed the loss
                continue

    def _start(self, request: Request) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = self._ray.util.get_current_placement_group() if request.uses_current_group else None
        if group is None:
            group = self._reserve(request)
        kind = self._ray.remote(Worker)
        for number in range(request.num_workers):
            where = PlacementGroupSchedulingStrategy(
                placement_group=group,
                placement_group_bundle_index=-1
                if self._own_group is None
                else number // (request.workers_per_host or 1),
                placement_group_capture_child_tasks=False,
            )
            options = kind.options(num_cpus=request.cpus, num_gpus=request.gpus, scheduling_strategy=where)
            self._actors.append(options.remote())

    def _reserve(self, request: Request) -> Any:
        bundles = request.bundles()
        strategy = "STRICT_SPREAD" if request.workers_per_host else "PACK"
        group = self._own_group = self._ray.util.placement_group(bundles, strategy=strategy)
        ready, _ = self._ray.wait([group.ready()], timeout=request.group_timeout_s)
        if ready:
            return group
        apart = " on different nodes" if request.workers_per_host else ""
        there = {name: self._ray.cluster_resources().get(name, 0) for name in bundles[0]}
        raise TimeoutError(
            f"the Ray cluster has not found room for {len(bundles)} × {bundles[0]}{apart} within "
            f"{request.group_timeout_s:g} s; it has {there} in total: ask for fewer workers, or end other jobs."
        )

    def _join(self, variables: Mapping[str, str]) -> None:
        """Gives the workers their ranks, and the variables of these."""
        until = time.monotonic() + self._request.start_timeout_s
        seats = self.collect(self.call("seat"), "its start", self._request.start_timeout_s)
        nodes = list(dict.fromkeys(seat.node for seat in seats))
        order = sorted(range(len(seats)), key=lambda number: nodes.index(seats[number].node))
        self._actors = [self._actors[number] for number in order]
        self._seats = [seats[number] for number in order]
        key = _key(variables)
        joining = [
            actor.join.remote(of_rank | dict(variables), key, alias.is_installed())
            for actor, of_rank in zip(self._actors, rank_variables(self._seats), strict=True)
        ]
        self.collect(joining, "the start of the group", max(1, until - time.monotonic()))

    def _name(self, rank: int) -> str:
        name = f"worker {rank} of {self._request.num_workers}"
        if not self._seats:
            return name
        seat = self._seats[rank]
        return f"{name} on node {seat.address} (process {seat.pid})"

    def _death(self, rank: int, during: str, error: Exception) -> WorkerDiedError:
        text = str(error).strip()
        name, found = self._name(rank), _ADDRESS.search(text)
        if not self._seats and found:
            name += f" on node {found[1]}"
        last = text.splitlines()[-1].strip()[:_MOST_SHOWN]
        return WorkerDiedError(
            f"{name} died during {during}, and the job has ended; look at the worker's log on that node. Ray says: "
            f"{last}"
        )


def _key(variables: Mapping[str, str]) -> str:
    """Returns the job's key; empty if the user's variables for the workers name one."""
    if any(variables.get(name) for name in job_key.NAMES):
        return ""
    return job_key.own(os.environ) if any(os.environ.get(name) for name in job_key.NAMES) else job_key.new()


def rank_variables(seats: Sequence[Seat]) -> list[dict[str, str]]:
    """Returns the variables of each rank. The seats of a node are consecutive."""
    counts: dict[str, int] = {}
    for seat in seats:
        counts[seat.node] = counts.get(seat.node, 0) + 1
    addresses = {seat.node: seat.address for seat in seats}
    hosts = [Host(addresses[node], count) for node, count in counts.items()]
    shares = placement.place(hosts, len(seats))
    made = []
    for rank, seat in enumerate(seats):
        own = placement.variables(shares, rank, seats[0].address, seats[0].port)
        # A rank sees all GPUs of its node's ranks, as under Horovod: scripts choose one by hvd.local_rank().
        gpus = [gpu for each in seats if each.node == seat.node for gpu in each.gpus]
        made.append(own | ({"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpus))} if gpus else {}))
    return made

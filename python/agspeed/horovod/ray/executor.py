# SPDX-License-Identifier: Apache-2.0
"""RayExecutor, with Horovod's surface, for jobs of a fixed number of workers.

Functions, arguments and results travel as Ray's objects, which Ray pickles: a worker runs the code that the driver
sends. Ray's own protection decides who may be the driver.

Threading: one thread uses an executor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agspeed.errors import UserError
from agspeed.horovod.ray.workers import Request, WorkerDiedError, Workers, load_ray

__all__ = ["RayExecutor", "Settings"]


@dataclass(frozen=True)
class Settings:
    """Made by `RayExecutor.create_settings`.

    Attributes:
        timeout_s: seconds in which the workers must start.
        placement_group_timeout_s: seconds in which the cluster must find room for them.
        nics: network interfaces that carry the job; all, if empty.
    """

    timeout_s: float = 30
    placement_group_timeout_s: float = 100
    nics: tuple[str, ...] = ()


class RayExecutor:
    """Runs functions at the ranks of a job, which are actors of a Ray cluster.

    The job key is random, unless AGSPEED_JOB_KEY or AGSPEED_JOB_KEY_FILE is set here or in `extra_env_vars`.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Sequence[str] | set[str] | None = None,
    ) -> Settings:
        """Returns settings for the executor. Ray starts the workers, so the arguments for ssh have no effect."""
        for name, value in (("timeout_s", timeout_s), ("placement_group_timeout_s", placement_group_timeout_s)):
            if not isinstance(value, (int, float)) or not value > 0:
                raise UserError(f"create_settings({name}={value!r}): write a number of seconds, more than 0.")
        if isinstance(nics, str):
            raise UserError(f"create_settings(nics={nics!r}): write a set of names, as in {{{nics!r}}}.")
        return Settings(timeout_s, placement_group_timeout_s, tuple(sorted(nics or ())))

    def __init__(
        self,
        settings: Settings | None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Any = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        """Starts nothing yet. See horovod/ray/runner.py for the arguments.

        Args:
            settings: from `create_settings`; None for its defaults.
            num_workers: ranks, packed on few nodes, in the placement group of the caller if it has one.
            num_hosts: instead of num_workers, the number of nodes.
            num_workers_per_host: the number of ranks on each of these nodes.
            cpus_per_worker: CPUs that Ray reserves for each rank.
            use_gpu: whether Ray reserves GPUs. A rank sees all GPUs of the ranks on its node; choose one by
                `hvd.local_rank()`.
            gpus_per_worker: how many GPUs Ray reserves for each rank, 1 by default.

        The arguments from min_workers on are for elastic jobs, and are refused.

        Raises: UserError for values that make no sense, for elastic jobs, and if Ray is not installed.
        """
        elastic = {
            "min_workers": min_workers,
            "max_workers": max_workers,
            "reset_limit": reset_limit,
            "cooldown_range": cooldown_range,
            "elastic_timeout": elastic_timeout != 600,
            "override_discovery": not override_discovery,
        }
        if named := [name for name, value in elastic.items() if value]:
            raise UserError(
                f"RayExecutor({', '.join(named)}): jobs on Ray keep their number of workers; pass num_workers, or use "
                "`agspeed run --min-np` for an elastic job."
            )
        self._settings = _checked_settings(settings)
        self._request = _request(
            self._settings,
            num_workers=num_workers,
            num_hosts=num_hosts,
            per_host=num_workers_per_host,
            cpus=cpus_per_worker,
            gpus=_num_gpus(use_gpu, gpus_per_worker),
            uses_current_group=use_current_placement_group,
        )
        self._workers: Workers | None = None
        load_ray()

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the workers, and returns when all of them have their rank.

        Args:
            executable_cls: each worker makes an object of this class, for `execute` and `execute_single`.
            executable_args: positional arguments for the class.
            executable_kwargs: keyword arguments for the class.
            extra_env_vars: environment variables of the workers.

        Raises: TimeoutError, or RuntimeError that names a worker and its node if it died. Nothing runs then.
        """
        if self._workers is not None:
            raise UserError("start(): the workers run already; call shutdown() before.")
        variables = {"AGSPEED_SOCKET_IFNAME": "=" + ",".join(self._settings.nics)} if self._settings.nics else {}
        variables |= {name: str(value) for name, value in (extra_env_vars or {}).items()}
        self._workers = Workers(self._request, variables)
        if executable_cls is not None:
            args = (executable_cls, list(executable_args or ()), dict(executable_kwargs or {}))
            try:
                self._workers.collect(self._workers.call("make_executable", *args), "the start of its executable")
            except BaseException:
                self.shutdown()
                raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Any = None,
    ) -> list[Any]:
        """Calls fn(*args, **kwargs) at every rank. Returns: the results, by rank.

        Raises: the first exception of a rank. The other ranks may still wait for it then: call shutdown(). RuntimeError
        that names the worker and its node if a worker died. All workers are ended then.
        """
        _refuse_callbacks("run", callbacks)
        return self._collect(self.run_remote(fn, args, kwargs), fn)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Starts fn(*args, **kwargs) at every rank. Returns: Ray's references to the results, by rank."""
        return self._started().call("run", fn, list(args or ()), dict(kwargs or {}))

    def execute(self, fn: Callable[[Any], Any], callbacks: Any = None) -> list[Any]:
        """Calls fn(executable) at every rank, with the object that start() has made. See `run` for the rest."""
        _refuse_callbacks("execute", callbacks)
        return self._collect(self._started().call("execute", fn), fn)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls fn(executable) at rank 0 only. Returns: its result."""
        return self._collect([self._started().actors[0].execute.remote(fn)], fn)[0]

    def shutdown(self) -> None:
        """Ends the workers, also if they are busy. Does nothing before start()."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _started(self) -> Workers:
        if self._workers is None:
            raise UserError("the executor has no workers: call start() first, also after a worker died.")
        return self._workers

    def _collect(self, references: Sequence[Any], fn: Any) -> list[Any]:
        workers = self._started()
        try:
            return workers.collect(references, f"{getattr(fn, '__name__', fn)}()")
        except WorkerDiedError:
            self.shutdown()
            raise


def _checked_settings(settings: Any) -> Settings:
    if settings is None:
        return Settings()
    if not isinstance(settings, Settings):
        raise UserError(
            f"RayExecutor(settings={type(settings).__name__}): pass the result of RayExecutor.create_settings()."
        )
    return settings


def _request(
    settings: Settings,
    num_workers: int | None,
    num_hosts: int | None,
    per_host: int,
    cpus: float,
    gpus: float,
    uses_current_group: bool,
) -> Request:
    if (num_workers is None) == (num_hosts is None):
        raise UserError(
            f"RayExecutor(num_workers={num_workers}, num_hosts={num_hosts}): pass one of them; num_hosts goes with "
            "num_workers_per_host."
        )
    for name, count in (("num_workers", num_workers), ("num_hosts", num_hosts), ("num_workers_per_host", per_host)):
        if count is not None and (not isinstance(count, int) or count < 1):
            raise UserError(f"RayExecutor({name}={count!r}): write a number, 1 or more.")
    if not isinstance(cpus, (int, float)) or not cpus > 0:
        raise UserError(f"RayExecutor(cpus_per_worker={cpus!r}): write a number, more than 0.")
    total = num_workers if num_workers is not None else (num_hosts or 0) * per_host
    return Request(
        num_workers=total,
        workers_per_host=None if num_hosts is None else per_host,
        cpus=cpus,
        gpus=gpus,
        uses_current_group=uses_current_group and num_hosts is None,
        group_timeout_s=settings.placement_group_timeout_s,
        start_timeout_s=settings.timeout_s,
    )


def _num_gpus(use_gpu: bool, gpus_per_worker: float | None) -> float:
    if gpus_per_worker and not use_gpu:
        raise UserError("gpus_per_worker is set, but use_gpu is False. use_gpu must be True if gpus_per_worker is set.")
    if use_gpu and gpus_per_worker is not None and not gpus_per_worker > 0:
        raise UserError(f"RayExecutor(gpus_per_worker={gpus_per_worker!r}): write a number, more than 0.")
    return (gpus_per_worker or 1) if use_gpu else 0


def _refuse_callbacks(method: str, callbacks: Any) -> None:
    if callbacks:
        raise UserError(f"{method}(callbacks): values are not passed on while the function runs; return them from it.")

# SPDX-License-Identifier: Apache-2.0
"""The description of a job: what is common to all engines, as flags or as a TOML file. Pure, except for the file.

A field is one row here. Its name is the key in the file, and its flag has dashes in place of underscores. `Job` checks
its values when it is made, so every `Job` is valid on its own; rules of one engine are in `engines.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agspeed.cluster import rules
from agspeed.errors import UserError

__all__ = ["FIELDS", "Job", "read"]

_MOST_FILE_BYTES = 1 << 20
_REQUIRED = ("name", "image", "command")


def _about(rule: Any, text: str, metavar: str | None) -> dict[str, Any]:
    """A field's rule, and the help text and the placeholder of its flag."""
    return {"rule": rule, "help": text, "metavar": metavar}


def _row(rule: Any, text: str, metavar: str | None, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata=_about(rule, text, metavar))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job. Raises: UserError, which names the field, for a value that no engine accepts."""

    name: str = _row(rules.label, "the name of the job", "NAME")
    image: str = _row(rules.image, "the image of all hosts, with its version", "IMAGE")
    command: tuple[str, ...] = _row(rules.command, "the command that every rank runs", None)
    replicas: int = _row(rules.count(1), "hosts, that is, pods with ranks (1)", "N", 1)
    slots: int = _row(rules.count(1, 4096), "ranks on each host (1)", "N", 1)
    min_replicas: int | None = _row(rules.count(1), "elastic: go on with N hosts or more", "N")
    max_replicas: int | None = _row(rules.count(1), "elastic: use N hosts at most", "N")
    namespace: str = _row(rules.namespace, "the namespace (default)", "NAME", "default")
    cpu: str | None = _row(rules.cores, "cores of each host, as in 8 or 500m", "N")
    memory: str | None = _row(rules.size, "memory of each host, as in 32Gi", "SIZE")
    gpus: int = _row(rules.count(0, 64), "GPUs of each host (0)", "N", 0)
    shared_memory: str = _row(rules.size, "size of /dev/shm, part of the memory (1Gi)", "SIZE", "1Gi")
    huge_pages: str | None = _row(rules.pages, "huge pages of 2 MiB for each host, as in 1Gi (none)", "SIZE")
    ipc_lock: bool = _row(rules.switch, "ask for the right to lock memory (IPC_LOCK)", None, False)
    host_network: bool = _row(rules.switch, "use the hosts' network interfaces", None, False)
    interfaces: tuple[str, ...] = _row(rules.interfaces, "interfaces that carry the job", "A,B", ())
    annotations: dict[str, str] = dataclasses.field(
        default_factory=dict,
        metadata=_about(rules.pod_annotations, "an annotation of the pods, as for Multus", "NAME=TEXT"),
    )
    env: dict[str, str] = dataclasses.field(
        default_factory=dict, metadata=_about(rules.environment, "a variable of the ranks", "NAME=VALUE")
    )
    user_id: int = _row(rules.count(0, (1 << 31) - 1), "the user of all processes (1000)", "N", 1000)
    job_key: str | None = _row(rules.label, "the Secret with the job's key (NAME-job-key)", "NAME")
    kueue_queue: str | None = _row(rules.local_queue, "the local queue of Kueue", "NAME")
    volcano_queue: str | None = _row(rules.queue, "the queue of Volcano", "NAME")
    ssh_port: int = _row(rules.count(1, 65535), "the port of sshd on the hosts (2222)", "N", 2222)
    hosts: tuple[str, ...] = _row(rules.host_list, "the hosts; the first one is the head", "A,B", ())

    def __post_init__(self) -> None:
        for field in FIELDS:
            value = getattr(self, field.name)
            if value is None and field.name in _REQUIRED:
                remedy = "write it behind all flags" if field.name == "command" else f"add --{field.name}"
                raise UserError(f"{field.name}: it is missing; {remedy}, or write it into the file of --file.")
            if value is not None:
                object.__setattr__(self, field.name, field.metadata["rule"](field.name, value))
        self._check_sizes()

    @property
    def is_elastic(self) -> bool:
        """Whether hosts may come and go."""
        return self.min_replicas is not None or self.max_replicas is not None

    @property
    def least(self) -> int:
        """The fewest hosts with which it goes on."""
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def most(self) -> int:
        """The most hosts that it uses."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def secret(self) -> str:
        """The name of the Secret that holds its key."""
        return self.job_key or f"{self.name}-job-key"

    def _check_sizes(self) -> None:
        if self.least > self.replicas:
            raise UserError(
                f"min_replicas: {self.min_replicas} is more than replicas, {self.replicas}; write a smaller number."
            )
        if self.most < self.replicas:
            raise UserError(
                f"max_replicas: {self.max_replicas} is less than replicas, {self.replicas}; write a larger number."
            )
        if self.huge_pages is not None and self.memory is None and self.cpu is None:
            raise UserError("huge_pages: Kubernetes gives them with cpu or memory only; write one of these, too.")
        if self.name is not None and self.job_key is None and len(self.secret) > rules.LONGEST_LABEL:
            raise UserError(f"name: {self.name!r} is too long for its Secret {self.secret}; write a shorter one.")


FIELDS = dataclasses.fields(Job)


def read(path: Path) -> dict[str, Any]:
    """Returns the fields of a TOML file. Raises: UserError for a file that cannot be read, and for unknown keys."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_FILE_BYTES + 1)
        found = tomllib.loads(content.decode()) if len(content) <= _MOST_FILE_BYTES else None
    except OSError as error:
        raise UserError(f"--file {path}: {error.strerror}; name a file that can be read.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f'--file {path} is not valid TOML: {error}; write lines such as name = "train".') from None
    if found is None:
        raise UserError(f"--file {path} is longer than {_MOST_FILE_BYTES} bytes; write one description.")
    _check_keys(path, found)
    return found


def _check_keys(path: Path, found: Mapping[str, Any]) -> None:
    known = [field.name for field in FIELDS]
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
            raise UserError(f"--file {path}: there is no field {key!r}; {remedy}")

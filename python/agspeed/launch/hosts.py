# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job, as users name them: `-H node0:2,node1:2`, a host file, or what a script prints that finds hosts.

Pure, except that it reads the file.

A host file has one host per line, as Horovod's, Open MPI's and MPICH's do. These three lines mean the same:

    node0 slots=2                   Horovod
    node0 slots=2 max_slots=4       Open MPI
    node0:2                         MPICH, Intel MPI

Text behind a # is a comment.

A script prints one host per line, as Horovod's do: `node0`, or `node0:2` with its slots.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agspeed.errors import UserError

__all__ = ["MOST_SLOTS", "Host", "found_by_script", "local", "parse", "read"]

MOST_SLOTS = 4096
_MOST_FILE_BYTES = 1 << 20
_MOST_SHOWN = 60
_LOCAL = ("localhost", "127.0.0.1")
# A name begins with a letter or digit, so that no program takes it for an option.
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_SLOTS = re.compile(r"[0-9]{1,9}")
_SLOTS_WORD = re.compile(r"slots=(\S*)")
_MAX_SLOTS_WORD = re.compile(r"max[_-]slots=[0-9]+")
_IN_LIST = ". Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."  # Horovod's words
_IN_FILE = "; write a host and its slots, such as node0 slots=4."
_OF_SCRIPT = "; print lines such as node0:4."


@dataclass(frozen=True)
class Host:
    """A host, and how many ranks it may run.

    Attributes:
        name: as the user wrote it; it may begin with a user's name, as in root@node1.
    """

    name: str
    slots: int

    @property
    def is_local(self) -> bool:
        """Whether this process runs there."""
        return self.name in (*_LOCAL, socket.gethostname())


def local(slots: int) -> tuple[Host, ...]:
    """This host alone."""
    return (Host(_LOCAL[0], slots),)


def parse(text: str) -> tuple[Host, ...]:
    """Returns the hosts of `node0:2,node1:2`. Raises: UserError, which names the wrong entry."""
    return _distinct([(f"--hosts {text}", _host(f"--hosts {text}", entry, _IN_LIST)) for entry in text.split(",")])


def read(path: Path, flag: str = "--hostfile ") -> tuple[Host, ...]:
    """Returns the hosts of a host file. Raises: UserError, which names the file and the line.

    flag: the words before the file on the command line.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_FILE_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise UserError(f"{flag}{path}: {error.strerror}; name a file that can be read.") from None
    except UnicodeDecodeError:
        raise UserError(f"{flag}{path} is not text; write one line per host, such as node0 slots=4.") from None
    if len(content) > _MOST_FILE_BYTES:
        raise UserError(f"{flag}{path} is longer than {_MOST_FILE_BYTES} bytes; write one line per host.")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            where = f"{flag}{path}, line {number}"
            found.append((where, _host_of_line(where, words)))
    if not found:
        raise UserError(f"{flag}{path} names no host; write one line per host, such as node0 slots=4.")
    return _distinct(found)


def found_by_script(where: str, output: bytes, slots: int | None) -> tuple[Host, ...]:
    """Returns the hosts that a script has printed; none for an empty output.

    Args:
        where: the script, for the begin of a sentence.
        slots: of hosts without a number; None if each host needs one.

    Raises: UserError, which names the line.
    """
    try:
        lines = output.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        line = output.count(b"\n", 0, error.start) + 1
        raise UserError(f"{where}, line {line}: it has bytes that are no ASCII; print lines such as node0:4.") from None
    numbered = [(f"{where}, line {number}", line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    return _distinct(
        (at, _host(at, line, _OF_SCRIPT) if ":" in line else _host_without_number(at, line, slots))
        for at, line in numbered
    )


def _host_without_number(where: str, name: str, slots: int | None) -> Host:
    if not _NAME.fullmatch(name):
        raise _no_host(where, name, _OF_SCRIPT)
    if slots is None:
        raise UserError(f"{where}: {name} has no slots; print {name}:4, for example, or give --slots-per-host.")
    return Host(name, slots)


def _host_of_line(where: str, words: list[str]) -> Host:
    name, *rest = words
    slots = [match[1] for word in rest if (match := _SLOTS_WORD.fullmatch(word))]
    unknown = [word for word in rest if not _SLOTS_WORD.fullmatch(word) and not _MAX_SLOTS_WORD.fullmatch(word)]
    if unknown:
        raise UserError(f"{where}: {unknown[0]!r} is unknown{_IN_FILE}")
    if len(slots) > 1 or (slots and ":" in name):
        raise UserError(f"{where}: {name} has two numbers of slots; write one, such as node0 slots=4.")
    if not slots and ":" not in name:
        raise UserError(f"{where}: {name} has no slots; write how many ranks it may run: {name} slots=4.")
    return _host(where, f"{name}:{slots[0]}" if slots else name, _IN_FILE)


def _host(where: str, entry: str, remedy: str) -> Host:
    name, separator, count = entry.strip().rpartition(":")
    if not separator or not _NAME.fullmatch(name) or not _SLOTS.fullmatch(count):
        raise _no_host(where, entry, remedy)
    slots = int(count)
    if not 1 <= slots <= MOST_SLOTS:
        raise UserError(f"{where}: {name} has {slots} slots; write how many ranks it may run, 1 to {MOST_SLOTS}.")
    return Host(name, slots)


def _no_host(where: str, entry: str, remedy: str) -> UserError:
    return UserError(f"{where}: {entry[:_MOST_SHOWN]!r} is not a host with slots{remedy}")


def _distinct(found: Iterable[tuple[str, Host]]) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    for where, host in found:
        key = _LOCAL[0] if host.is_local else host.name
        if key in hosts:
            raise UserError(
                f"{where}: {host.name} is named twice{_as_other(hosts[key], host)}; write it once, with all its slots."
            )
        hosts[key] = host
    return tuple(hosts.values())


def _as_other(first: Host, second: Host) -> str:
    return "" if first.name == second.name else f", first as {first.name}"

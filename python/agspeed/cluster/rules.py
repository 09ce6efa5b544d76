# SPDX-License-Identifier: Apache-2.0
"""The rules for the values of a description. Each one takes a field's name and a value, and raises UserError that names
the field, or returns the value. Pure.

The rules follow Kubernetes' own: RFC 1035 and RFC 1123 labels, quantities, names of variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from agspeed.errors import UserError

__all__ = [
    # keep-sorted
    "LONGEST_LABEL",
    "bytes_of",
    "command",
    "cores",
    "count",
    "environment",
    "host_list",
    "image",
    "interfaces",
    "label",
    "local_queue",
    "namespace",
    "pages",
    "pod_annotations",
    "queue",
    "size",
    "switch",
]

LONGEST_LABEL = 63
_LONGEST_IMAGE = 500  # of a TrainJob
_MOST_SHOWN = 60
_PAGE_BYTES = 2 << 20
_MOST_REPLICAS = 10_000
_LABEL_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_LABEL_1123 = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL_1123.pattern}(?:\.{_LABEL_1123.pattern})*")
_IMAGE = re.compile(
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_CORES = re.compile(r"[0-9]+(?:\.[0-9]{1,3})?|[0-9]+m")
_SIZE = re.compile(r"([0-9]+)(?:k|[MGTPE]|[KMGTPE]i)?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_INTERFACE = re.compile(r"[^\s,/:^=]{1,15}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANNOTATION = re.compile(
    rf"(?:(?=[^/]{{1,253}}/){_SUBDOMAIN.pattern}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?"
)
_SECRETS = ("AGSPEED_JOB_KEY", "AGSPEED_JOB_KEY_FILE")
_OF_LAUNCHERS = re.compile(
    r"PET_\w+|HOROVOD_(?:CROSS_|LOCAL_)?(?:RANK|SIZE)|(?:LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT)|"
    r"OMPI_\w+|PMI_\w+|SLURM_\w+"
)


def label(field: str, value: Any) -> str:
    """An RFC 1035 label, as names of jobs are."""
    return _matching(field, value, _LABEL_1035, "lower-case letters, digits and dashes, a letter first, as in train-1")


def namespace(field: str, value: Any) -> str:
    """An RFC 1123 label."""
    return _matching(field, value, _LABEL_1123, "lower-case letters, digits and dashes, as in team-a")


def queue(field: str, value: Any) -> str:
    """The name of an object, as queues have it."""
    return _matching(field, value, _SUBDOMAIN, "the name of a queue, as in team-a-queue", longest=253)


def local_queue(field: str, value: Any) -> str:
    """The name of a queue of Kueue, which is the text of a label."""
    return _matching(field, value, _SUBDOMAIN, "the name of a queue, as in team-a-queue")


def image(field: str, value: Any) -> str:
    """The reference of an image."""
    example = "the name of an image, as in team/train:1.0"
    found = _matching(field, value, _IMAGE, example, longest=_LONGEST_IMAGE)
    if "@" not in found and (":" not in found.rsplit("/", 1)[-1] or found.endswith(":latest")):
        raise _wrong(
            field, value, f"a version, as in {found.removesuffix(':latest')}:1.0, so that all hosts run the same"
        )
    return found


def count(least: int, most: int = _MOST_REPLICAS) -> Callable[[str, Any], int]:
    """A whole number from `least` to `most`."""

    def check(field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(field, value, f"a whole number from {least} to {most}")
        return value

    return check


def switch(field: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(field, value, "true or false")
    return value


def cores(field: str, value: Any) -> str:
    """A quantity of processors: 4, 0.5 or 500m."""
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    found = _matching(field, text, _CORES, "a number of cores, as in 4 or 500m")
    if not found.strip("0.m"):
        raise _wrong(field, value, "more than 0 cores, as in 4 or 500m")
    return found


def size(field: str, value: Any) -> str:
    """A quantity of bytes with a unit."""
    found = _matching(field, value, _SIZE, "a size in Kubernetes' units, as in 512Mi or 16Gi")
    if found.isdigit() or not found.strip("0kMGTPEi"):
        raise _wrong(field, value, "a size with a unit, more than 0, as in 512Mi or 16Gi")
    return found


def pages(field: str, value: Any) -> str:
    """A quantity of bytes that is a number of huge pages."""
    found = size(field, value)
    if bytes_of(found) % _PAGE_BYTES:
        raise _wrong(field, value, "a multiple of 2Mi, as in 512Mi or 1Gi")
    return found


def bytes_of(quantity: str) -> int:
    """Returns the bytes of a quantity that `size` has accepted."""
    digits = quantity.rstrip("kMGTPEi")
    unit = quantity[len(digits) :]
    exponent = "kMGTPE".index(unit[0].replace("K", "k")) + 1
    base = 1024 if unit.endswith("i") else 1000
    return int(digits) * int(base**exponent)


def command(field: str, value: Any) -> tuple[str, ...]:
    """The words of a command."""
    if isinstance(value, str):
        raise _wrong(field, value, 'a list of words, as in ["python", "train.py"]')
    words = _list(field, value, '"python", "train.py"')
    if not words or not words[0]:
        raise UserError(f"{field}: it is empty; write the command that every rank runs, as in python train.py.")
    return words


def interfaces(field: str, value: Any) -> tuple[str, ...]:
    """Names of network interfaces, or with ^ in front of the first one, the ones that are left out."""
    words = _list(field, value, '"eth0", "eth1"')
    for number, word in enumerate(words):
        if not _INTERFACE.fullmatch(word.removeprefix("^") if number == 0 else word):
            raise _wrong(field, word, "names of interfaces, as in eth0,eth1")
    return words


def host_list(field: str, value: Any) -> tuple[str, ...]:
    """Names of hosts, each once."""
    words = _list(field, value, '"node0", "node1"')
    for number, word in enumerate(words):
        if not _HOST.fullmatch(word):
            raise _wrong(field, word, "names of hosts, as in node0,node1")
        if word in words[:number]:
            raise UserError(f"{field}: {word} is named twice; write each host once.")
    return words


def environment(field: str, value: Any) -> dict[str, str]:
    """Variables of the ranks. Secrets and the variables that launchers set are refused."""
    variables = _texts(field, value)
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise UserError(f"{field}: {name[:_MOST_SHOWN]!r} is no name of a variable; write NAME=VALUE.")
        if name in _SECRETS:
            raise UserError(f"{field}: {name} is a secret, and manifests hold none; leave it out and name a job_key.")
        if name == "SSH_PORT":
            raise UserError(f"{field}: {name} is set for sshd; write ssh_port instead.")
        if _OF_LAUNCHERS.fullmatch(name):
            raise UserError(f"{field}: {name} is set by the launcher of the ranks; leave it out.")
    return variables


def pod_annotations(field: str, value: Any) -> dict[str, str]:
    """Annotations of the pods, as Multus and clouds read them."""
    found = _texts(field, value)
    for name in found:
        if not _ANNOTATION.fullmatch(name):
            raise UserError(
                f"{field}: {name[:_MOST_SHOWN]!r} is no name of an annotation; write one as in "
                "k8s.v1.cni.cncf.io/networks=rail-1."
            )
    return found


def _wrong(field: str, value: Any, expected: str) -> UserError:
    return UserError(f"{field}: {str(value)[:_MOST_SHOWN]!r} is not valid; write {expected}.")


def _matching(field: str, value: Any, pattern: re.Pattern[str], expected: str, longest: int = LONGEST_LABEL) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _wrong(field, value, expected)
    if len(value) > longest:
        raise UserError(f"{field}: {value[:_MOST_SHOWN]!r} has {len(value)} characters; write {longest} at most.")
    return value


def _list(field: str, value: Any, example: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise _wrong(field, value, f"a list of texts, as in [{example}]")
    for word in value:
        _printable(field, word)
    return tuple(value)


def _texts(field: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise _wrong(field, value, 'names with texts, as in { NAME = "text" }')
    for text in value.values():
        _printable(field, text)
    return dict(value)


def _printable(field: str, text: str) -> None:
    if not text.isprintable():
        raise UserError(f"{field}: {text[:_MOST_SHOWN]!r} has characters that cannot be printed; leave them out.")

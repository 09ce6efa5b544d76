# SPDX-License-Identifier: Apache-2.0
"""Runs `agspeed cluster render` in this process, as users type it, and reads what it prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agspeed.cli import main

__all__ = [
    # keep-sorted
    "ALL_FLAGS",
    "BASE",
    "COMPOSE_BASE",
    "ELASTIC",
    "ENGINES",
    "objects",
    "pod_specs",
    "refused",
    "render",
]

BASE = ["--name", "train", "--image", "team/train:1.0"]
COMPOSE_BASE = [*BASE, "--hosts", "node0,node1,node2,node3"]
ELASTIC = ["--replicas", "2", "--min-replicas", "1", "--max-replicas", "3"]
ALL_FLAGS = [
    *("--replicas", "3", "--slots", "4", "--namespace", "team-a", "--cpu", "8", "--memory", "32Gi", "--gpus", "2"),
    *("--shared-memory", "8Gi", "--huge-pages", "1Gi", "--host-network", "--interfaces", "eth0,eth1"),
    *("--annotation", "k8s.v1.cni.cncf.io/networks=rail-1", "--env", "A=b=c", "--kueue-queue", "queue-1"),
]

ENGINES = [
    *[("mpijob", "--api", api, *more) for api in ("v1", "v2beta1") for more in ((), ELASTIC)],
    ("pytorchjob",),
    ("pytorchjob", *ELASTIC),
    ("trainjob", "--trainer-version", "2.2"),
    ("trainjob", "--trainer-version", "2.3"),
    ("jobset",),
]
"""The kinds for Kubernetes, each with its choices."""


def render(capsys: pytest.CaptureFixture[str], kind: str, *words: str, command: tuple[str, ...] = ("train.py",)) -> str:
    """Returns what `agspeed cluster render` prints."""
    status = main(["cluster", "render", kind, *words, *command])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


def objects(capsys: pytest.CaptureFixture[str], kind: str, *words: str, **given: Any) -> list[Any]:
    """Returns the rendered objects, read by another program's YAML reader."""
    return list(yaml.safe_load_all(render(capsys, kind, *words, **given)))


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Yields the specs of all pods in an object."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for below in value.values():
            yield from pod_specs(below)
    elif isinstance(value, list):
        for below in value:
            yield from pod_specs(below)


def refused(capsys: pytest.CaptureFixture[str], kind: str, *words: str) -> str:
    """Returns the sentence with which the command refuses its arguments, with nothing on stdout."""
    status = main(["cluster", "render", kind, *words])
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, ""), printed
    return printed.err.strip().splitlines()[-1]

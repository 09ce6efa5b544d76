# SPDX-License-Identifier: Apache-2.0
"""`agspeed cluster`: `render` prints manifests for Kubernetes or Docker; `up` prepares hosts with ssh (`up.py`)."""

from __future__ import annotations

import argparse
import functools
from importlib import resources
from typing import Any

from agspeed.cluster import arguments as flags
from agspeed.cluster import up
from agspeed.cluster.engines import ENGINES, Engine

__all__ = ["add"]

_EPILOG = """\
examples:
  agspeed cluster render container > Containerfile
  agspeed cluster render mpijob --name train --image team/train:1.0 --replicas 2 --slots 4 \\
      --min-replicas 1 --max-replicas 3 --memory 32Gi python train.py > job.yaml
  agspeed cluster render trainjob --file job.toml | kubectl apply -f -
  agspeed cluster render compose --name train --image team/train:1.0 \\
      --hosts node0,node1,node2,node3 python train.py > compose.yaml

Nothing is started, and no cluster is asked. Pods are unprivileged, and use no paths of their host. Manifests hold no
key: comments at the top show the command that makes the Secret, where ranks need one. The objects were compared with
the definitions of the operators, and a real API server of Kubernetes 1.20 took them. They were not tried on a real
cluster."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "cluster", help="prepare hosts with ssh; print manifests of a job for Kubernetes and Docker"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    up.add(actions)
    render = actions.add_parser(
        "render",
        help="print the manifests of a job",
        description="Prints the manifests of a job, made from one description: flags, or a TOML file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kinds = render.add_subparsers(required=True, metavar="KIND")
    for name, engine in ENGINES.items():
        kind = kinds.add_parser(name, help=engine.help, description=f"Prints {engine.help}.", allow_abbrev=False)
        flags.add_to(kind, engine)
        kind.set_defaults(run=functools.partial(_run, engine))
    recipe = kinds.add_parser(
        "container",
        help="the recipe of an image: Debian, torch, agspeed's wheel, sshd as an ordinary user",
        description="Prints the recipe of an image for all engines. Build it with podman or docker.",
        allow_abbrev=False,
    )
    recipe.set_defaults(run=_print_recipe)


def _run(engine: Engine, arguments: argparse.Namespace) -> int:
    print(engine.render(flags.job_of(arguments, engine), flags.choices_of(arguments, engine)), end="")
    return 0


def _print_recipe(arguments: argparse.Namespace) -> int:
    print(resources.files("agspeed.cluster").joinpath("Containerfile").read_text(encoding="utf-8"), end="")
    return 0

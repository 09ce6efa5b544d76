# SPDX-License-Identifier: Apache-2.0
"""Reads the variables that Kubeflow's controllers set in pods: torchrun's flags, under names that begin with PET_.

They say which pod this is. torchrun, if it runs in the pod, turns them into the ranks of the pod. A script that runs
without torchrun is a rank of its own, if there is one rank per pod. The sources are setPodEnv of training-operator 1.9
(PyTorchJob) and the plugin torch of Kubeflow Trainer 2 (TrainJob). The module needs neither torch nor the native
extension.
"""

from __future__ import annotations

from collections.abc import Mapping

from agspeed.errors import UserError

__all__ = ["ADDRESS", "check_is_rank", "is_pod", "pod_placement"]

ADDRESS = ("PET_MASTER_ADDR", "PET_MASTER_PORT")
_NODES, _NODE, _RANKS_PER_POD = "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE"
_ONE = ("1", "auto", "cpu", "gpu")


def is_pod(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in a pod of several, and torchrun has not started it."""
    return _NODE in environ and environ.get(_NODES, "1") != "1" and "LOCAL_RANK" not in environ


def check_is_rank(environ: Mapping[str, str]) -> None:
    """Raises: UserError if the pod has several ranks, so that this process cannot be one of them."""
    if environ.get(_RANKS_PER_POD, "1") not in _ONE:
        raise UserError(
            f"{_RANKS_PER_POD}={environ[_RANKS_PER_POD]} is set and LOCAL_RANK is not: torchrun starts the ranks of a "
            "pod; begin the command with torchrun."
        )


def pod_placement(environ: Mapping[str, str]) -> tuple[int, int]:
    """Returns (rank, size), with one rank per pod. Raises: UserError if the pods or their ranks vary."""
    check_is_rank(environ)
    nodes, node = environ[_NODES], environ[_NODE]
    if not (nodes.isascii() and nodes.isdigit() and node.isascii() and node.isdigit() and int(node) < int(nodes)):
        raise UserError(
            f"{_NODE}={node!r} and {_NODES}={nodes!r} do not say which rank this is; begin the command with torchrun."
        )
    return int(node), int(nodes)

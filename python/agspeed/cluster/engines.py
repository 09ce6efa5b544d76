# SPDX-License-Identifier: Apache-2.0
"""The engines for which a job can be rendered: one row each, with its fields, its rules and its renderer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agspeed.cluster import compose, mpijob, pods, rules, torchrun, yaml_text
from agspeed.cluster.job import Job
from agspeed.cluster.pods import Manifest
from agspeed.errors import UserError

__all__ = ["ENGINES", "Engine"]

_COMMON = ("name", "image", "command", "slots", "env", "interfaces", "ipc_lock", "gpus", "shared_memory", "user_id")
_PODS = (
    *_COMMON,
    "replicas",
    "namespace",
    "cpu",
    "memory",
    "huge_pages",
    "host_network",
    "annotations",
    "kueue_queue",
)
_ELASTIC = ("min_replicas", "max_replicas", "volcano_queue")


@dataclass(frozen=True)
class Engine:
    """A way to run a job.

    Attributes:
        help: one line about it.
        fields: of `Job` that it uses. It refuses other sizes, and leaves out the other fields.
        longest: returns the longest name that the engine makes from the job's; it has to be a label.
        make: returns the objects of a job and of the choices.
        comment: returns the lines above the objects.
        choices: flag -> (its values, the default, the help text).
    """

    help: str
    fields: Sequence[str]
    longest: Callable[[Job], str]
    make: Callable[[Job, dict[str, Any]], list[Manifest]]
    comment: Callable[[Job, dict[str, Any]], list[str]] = lambda job, chosen: []
    choices: dict[str, tuple[Sequence[str], str, str]] = field(default_factory=dict)

    def render(self, job: Job, chosen: dict[str, Any]) -> str:
        """Returns YAML. chosen: a value for each of `choices`. Raises: UserError for a job that it cannot run."""
        for each in ("min_replicas", "max_replicas"):
            if each not in self.fields and getattr(job, each) is not None:
                raise UserError(f"{each}: this engine keeps the size of a job; leave it out, or render an mpijob.")
        if "namespace" in self.fields:
            pods.check(job)
        if len(longest := self.longest(job)) > rules.LONGEST_LABEL:
            raise UserError(
                f"name: the engine makes {longest} of it, with {len(longest)} characters; names have "
                f"{rules.LONGEST_LABEL} at most. Write a shorter one."
            )
        return yaml_text.documents(self.make(job, chosen), self.comment(job, chosen))


def _worker(job: Job) -> str:
    return f"{job.name}-worker-{job.most - 1}"


def _node(job: Job) -> str:
    return f"{job.name}-node-0-{job.replicas - 1}-abcde"


ENGINES = {
    "compose": Engine(
        "a compose file for Docker, or with --engine swarm for Docker Swarm",
        (*_COMMON, "hosts", "ssh_port"),
        lambda job: f"{job.name}-ssh-key",
        lambda job, chosen: compose.render(job, chosen["engine"] == "swarm"),
        lambda job, chosen: compose.comment(job, chosen["engine"] == "swarm"),
        {"engine": (("docker", "swarm"), "docker", "who runs the file (docker)")},
    ),
    "jobset": Engine(
        "a JobSet, jobset.x-k8s.io/v1alpha2",
        (*_PODS, "job_key"),
        _node,
        lambda job, chosen: torchrun.render_jobset(job),
        lambda job, chosen: pods.key_comment(job),
    ),
    "mpijob": Engine(
        "an MPIJob, kubeflow.org/v2beta1 or v1",
        (*_PODS, *_ELASTIC, "ssh_port"),
        _worker,
        lambda job, chosen: mpijob.render(job, chosen["api"]),
        choices={"api": (mpijob.APIS, "v2beta1", "the version of the objects (v2beta1)")},
    ),
    "pytorchjob": Engine(
        "a PyTorchJob, kubeflow.org/v1",
        (*_PODS, *_ELASTIC, "job_key"),
        _worker,
        lambda job, chosen: torchrun.render_pytorchjob(job),
        lambda job, chosen: pods.key_comment(job),
    ),
    "trainjob": Engine(
        "a TrainJob with its runtime, trainer.kubeflow.org/v1alpha1",
        (*_PODS, "job_key"),
        _node,
        lambda job, chosen: torchrun.render_trainjob(job),
        lambda job, chosen: pods.key_comment(job),
        {"trainer-version": (torchrun.TRAINER_VERSIONS, "2.3", "the version of Kubeflow Trainer (2.3)")},
    ),
}

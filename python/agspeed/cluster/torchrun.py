# SPDX-License-Identifier: Apache-2.0
"""The engines that start torchrun in each pod: PyTorchJob, TrainJob with its runtime, and JobSet. Pure.

torchrun starts the ranks of a pod, and gives them their numbers. It reads its flags from variables named PET_*, which
Kubeflow's controllers set: setPodEnv for PyTorchJob, EnforceMLPolicy of the plugin torch for TrainJob. If a pod fails,
all ranks start again, and take their state from the script's checkpoint.
"""

from __future__ import annotations

from agspeed.cluster import pods
from agspeed.cluster.job import Job
from agspeed.cluster.pods import Manifest
from agspeed.errors import UserError

__all__ = ["TRAINER_VERSIONS", "render_jobset", "render_pytorchjob", "render_trainjob"]

TRAINER_VERSIONS = ("2.2", "2.3")
_TORCHRUN = ["torchrun", "--no-python"]
_PORT = 29500
_MOST_WORDS = 128  # in the command of a TrainJob
_MOST_RESTARTS, _MOST_ELASTIC_RESTARTS = 3, 100
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"


def render_pytorchjob(job: Job) -> list[Manifest]:
    """Returns a PyTorchJob of kubeflow.org/v1 (training-operator 1.9).

    A job of fixed size has a master, where the ranks meet. An elastic one has workers only, and torchrun's rendezvous.
    """
    spec: Manifest = {"nprocPerNode": str(job.slots), "runPolicy": _policy(job)}
    if job.is_elastic:
        spec["elasticPolicy"] = {
            "minReplicas": job.least,
            "maxReplicas": job.most,
            "rdzvBackend": "c10d",
            "maxRestarts": _MOST_ELASTIC_RESTARTS,
        }
        spec["pytorchReplicaSpecs"] = {"Worker": _replicas(job, job.replicas)}
    else:
        spec["pytorchReplicaSpecs"] = {"Master": _replicas(job, 1)}
        if job.replicas > 1:
            spec["pytorchReplicaSpecs"]["Worker"] = _replicas(job, job.replicas - 1)
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": pods.metadata(job), "spec": spec}]


def render_trainjob(job: Job) -> list[Manifest]:
    """Returns a TrainingRuntime and its TrainJob (trainer.kubeflow.org/v1alpha1). Trainer 2.2 and 2.3 take the same
    objects.

    The runtime belongs to the namespace, so it takes no rights in the whole cluster. It holds the network of the host,
    the volumes, and the container that copies the key, which a TrainJob cannot hold.

    Raises: UserError for a command with more words than a TrainJob can hold.
    """
    most = _MOST_WORDS - len(_TORCHRUN)
    if len(job.command) > most:
        raise UserError(f"command: it has {len(job.command)} words, and a TrainJob's has {most} at most; use a script.")
    api = "trainer.kubeflow.org/v1alpha1"
    runtime = f"{job.name}-runtime"
    node = pods.pod(job, "node", None, has_key=True) | {"restartPolicy": "Never"}
    node["containers"][0].pop("resources", None)  # the TrainJob has them
    replicated = {
        "name": "node",
        "template": {
            "metadata": {"labels": {_ANCESTOR: "trainer"}},
            "spec": {"backoffLimit": 0, "template": pods.template(job, node)},
        },
    }
    trainer: Manifest = {
        "image": job.image,
        "command": [*_TORCHRUN, *job.command],
        "numNodes": job.replicas,
        "numProcPerNode": job.slots,
    }
    if wanted := pods.resources(job):
        trainer["resourcesPerNode"] = wanted
    return [
        {
            "apiVersion": api,
            "kind": "TrainingRuntime",
            "metadata": {
                "name": runtime,
                "namespace": job.namespace,
                "labels": {"trainer.kubeflow.org/framework": "torch"},
            },
            "spec": {
                "mlPolicy": {"numNodes": job.replicas, "torch": {}},
                "template": {
                    "spec": {"failurePolicy": {"maxRestarts": _MOST_RESTARTS}, "replicatedJobs": [replicated]}
                },
            },
        },
        {
            "apiVersion": api,
            "kind": "TrainJob",
            "metadata": pods.metadata(job),
            "spec": {
                "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": runtime},
                "trainer": trainer,
            },
        },
    ]


def render_jobset(job: Job) -> list[Manifest]:
    """Returns a JobSet (jobset.x-k8s.io/v1alpha2). Its pods get torchrun's variables here, as no controller sets
    them."""
    variables: list[Manifest] = [
        {"name": "PET_NNODES", "value": str(job.replicas)},
        {"name": "PET_NPROC_PER_NODE", "value": str(job.slots)},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "PET_MASTER_ADDR", "value": f"{job.name}-node-0-0.{job.name}"},
        {"name": "PET_MASTER_PORT", "value": str(_PORT)},
    ]
    node = pods.pod(job, "node", [*_TORCHRUN, *job.command], variables=variables, has_key=True)
    work = {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": job.replicas,
        "parallelism": job.replicas,
        "template": pods.template(job, node | {"restartPolicy": "Never"}),
    }
    spec = {
        "failurePolicy": {"maxRestarts": _MOST_RESTARTS},
        "network": {"enableDNSHostnames": True, "subdomain": job.name, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": work}}],
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": pods.metadata(job), "spec": spec}]


def _replicas(job: Job, count: int) -> Manifest:
    spec = pods.pod(job, "pytorch", [*_TORCHRUN, *job.command], has_key=True)
    return {"replicas": count, "restartPolicy": "OnFailure", "template": pods.template(job, spec)}


def _policy(job: Job) -> Manifest:
    scheduling: Manifest = {"minAvailable": job.least}
    if job.volcano_queue:
        scheduling["queue"] = job.volcano_queue
    return {"cleanPodPolicy": "Running", "backoffLimit": _MOST_RESTARTS, "schedulingPolicy": scheduling}

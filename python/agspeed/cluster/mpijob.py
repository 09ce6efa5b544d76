# SPDX-License-Identifier: Apache-2.0
"""MPIJob: a launcher pod runs `agspeed run`, and worker pods run its ranks. Pure.

    v2beta1  mpi-operator: the launcher reaches workers by ssh, with the operator's key; the job needs the image of
             `agspeed cluster render container`, whose agspeed-sshd runs sshd as an ordinary user
    v1       training-operator: the launcher reaches workers by `kubectl exec`. The operator gives it that right, for
             the pods of this job only, and a kubectl

An elastic job takes its hosts from the operator's /etc/mpi/discover_hosts.sh. v1 prints hosts as pod:slots, v2beta1 as
names alone. The source for both is the operators' code: updateDiscoverHostsInConfigMap.
"""

from __future__ import annotations

from agspeed.cluster import pods
from agspeed.cluster.job import Job
from agspeed.cluster.pods import Manifest
from agspeed.errors import UserError

__all__ = ["APIS", "render"]

APIS = ("v1", "v2beta1")
_FOLDER = "/etc/mpi"
_SSH_KEYS = "/var/lib/agspeed/.ssh"


def render(job: Job, api: str) -> list[Manifest]:
    """Returns the objects, one MPIJob. api: one of APIS. Raises: UserError for a user that v2beta1 cannot have."""
    is_v1 = api == "v1"
    if not is_v1 and job.user_id == 0:
        raise UserError("user_id: sshd of an mpijob v2beta1 runs as an ordinary user; write 1000, or use --api v1.")
    launcher = pods.launcher(job, "launcher", _launch(job, is_v1))
    worker = pods.pod(job, "worker", None if is_v1 else ["agspeed-sshd"])
    if is_v1:
        del launcher["automountServiceAccountToken"]  # kubectl needs it
    else:
        ready = {"tcpSocket": {"port": job.ssh_port}, "periodSeconds": 5}
        worker["containers"][0] |= {
            "env": [*worker["containers"][0].get("env", ()), {"name": "SSH_PORT", "value": str(job.ssh_port)}],
            "ports": [{"name": "ssh", "containerPort": job.ssh_port}],
            "readinessProbe": ready,
        }
    spec: Manifest = {"slotsPerWorker": job.slots, "runPolicy": _policy(job)}
    if not is_v1:
        spec["sshAuthMountPath"] = _SSH_KEYS
        if not job.is_elastic:
            spec["launcherCreationPolicy"] = "WaitForWorkersReady"
    spec["mpiReplicaSpecs"] = {
        "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": pods.template(job, launcher)},
        "Worker": {"replicas": job.replicas, "restartPolicy": "OnFailure", "template": pods.template(job, worker)},
    }
    return [{"apiVersion": f"kubeflow.org/{api}", "kind": "MPIJob", "metadata": pods.metadata(job), "spec": spec}]


def _launch(job: Job, is_v1: bool) -> list[str]:
    words = ["agspeed", "run", "-np", str(job.replicas * job.slots)]
    if job.is_elastic:
        words += ["--min-np", str(job.least * job.slots), "--max-np", str(job.most * job.slots)]
        words += ["--host-discovery-script", f"{_FOLDER}/discover_hosts.sh", "--slots-per-host", str(job.slots)]
    else:
        words += ["--hostfile", f"{_FOLDER}/hostfile"]
    return [*words, *([] if is_v1 else ["--ssh-port", str(job.ssh_port)]), *job.command]


def _policy(job: Job) -> Manifest:
    """Gang schedulers start the job with its fewest workers and the launcher."""
    scheduling: Manifest = {"minAvailable": job.least + 1}
    if job.volcano_queue:
        scheduling["queue"] = job.volcano_queue
    return {"cleanPodPolicy": "Running", "backoffLimit": 0, "schedulingPolicy": scheduling}

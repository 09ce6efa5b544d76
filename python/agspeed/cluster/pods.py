# SPDX-License-Identifier: Apache-2.0
"""The parts of pods that all Kubernetes engines share: resources, rights, volumes, variables and the job's key. Pure.

Pods are unprivileged: an ordinary user unless the job says otherwise, no capabilities, the runtime's own seccomp
profile, no paths of the host and no token for the API server. IPC_LOCK, huge pages and the network of the host are
there only if the job asks for them.

The key is in a Secret, which Kubernetes mounts with root as its owner. agspeed refuses a key that other users can read,
and an ordinary user cannot read root's private file. So a first container, of the same user, copies the key into a
private file in memory, and only that container sees the Secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agspeed.cluster.job import Job
from agspeed.errors import UserError

__all__ = [
    "COPY_KEY",
    "KEY_FILE",
    "Manifest",
    "check",
    "env",
    "key_comment",
    "launcher",
    "metadata",
    "pod",
    "resources",
    "template",
]

Manifest = dict[str, Any]
KEY_FILE, _KEY_FOLDER, _SECRET_FOLDER = "/run/agspeed/job-key", "/run/agspeed", "/run/agspeed-secret"
COPY_KEY = f"umask 077 && cat {_SECRET_FOLDER}/job-key > {KEY_FILE}"
"""The shell command of the container that copies the key."""
_READ_BY_ALL = 0o444
_KUEUE = "kueue.x-k8s.io/queue-name"
_GPU = "nvidia.com/gpu"
_HUGE_PAGES = "hugepages-2Mi"


def check(job: Job) -> None:
    """Raises: UserError for what no pod can have."""
    if job.ipc_lock and job.user_id != 0:
        raise UserError(
            f"ipc_lock: Kubernetes gives it to user 0 only, and user_id is {job.user_id}; write user_id 0 as well."
        )


def metadata(job: Job) -> Manifest:
    """The name of an object, and Kueue's queue."""
    found: Manifest = {"name": job.name, "namespace": job.namespace}
    return found | ({"labels": {_KUEUE: job.kueue_queue}} if job.kueue_queue else {})


def template(job: Job, spec: Manifest) -> Manifest:
    """A pod template with the annotations of the job."""
    return ({"metadata": {"annotations": dict(job.annotations)}} if job.annotations else {}) | {"spec": spec}


def pod(job: Job, name: str, words: Sequence[str] | None, **given: Any) -> Manifest:
    """The spec of a pod with ranks.

    Args:
        name: of its container.
        words: the command; None if the engine adds it.
        given: `variables`, a list in Kubernetes' form, added to the job's; `has_key`, whether ranks need the job's key.
    """
    has_key: bool = given.get("has_key", False)
    container: Manifest = {"name": name, "image": job.image}
    if words is not None:
        container["command"] = list(words)
    variables = [*env(job, has_key=has_key), *given.get("variables", ())]
    if variables:
        container["env"] = variables
    if wanted := resources(job):
        container["resources"] = wanted
    container["securityContext"] = _rights(job)
    container["volumeMounts"] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes: list[Manifest] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": job.shared_memory}}
    ]
    if job.huge_pages is not None:
        container["volumeMounts"].append({"name": "huge-pages", "mountPath": "/dev/hugepages"})
        volumes.append({"name": "huge-pages", "emptyDir": {"medium": "HugePages-2Mi"}})
    spec = _spec(job)
    if has_key:
        container["volumeMounts"].append({"name": "key", "mountPath": _KEY_FOLDER, "readOnly": True})
        volumes += [{"name": "key", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, _secret(job)]
        spec["initContainers"] = [_copies_key(job)]
    return spec | {"containers": [container], "volumes": volumes}


def launcher(job: Job, name: str, words: Sequence[str]) -> Manifest:
    """The spec of a pod without ranks, which starts them elsewhere."""
    variables = env(job)
    container: Manifest = {"name": name, "image": job.image, "command": list(words)}
    container |= {"env": variables} if variables else {}
    container["resources"] = {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "1", "memory": "2Gi"}}
    container["securityContext"] = _rights(None)
    return _spec(job) | {"containers": [container]}


def resources(job: Job) -> Manifest:
    """Requests and limits of a host. They are the same, as huge pages and GPUs demand."""
    wanted = {"cpu": job.cpu, "memory": job.memory, _GPU: str(job.gpus or ""), _HUGE_PAGES: job.huge_pages}
    amounts = {name: amount for name, amount in wanted.items() if amount}
    return {"limits": amounts, "requests": dict(amounts)} if amounts else {}


def env(job: Job, has_key: bool = False) -> list[Manifest]:
    """The variables of the job, in Kubernetes' form."""
    chosen = ",".join(job.interfaces)
    names = ("AGSPEED_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if chosen else ()
    variables = dict.fromkeys(names, chosen) | ({"AGSPEED_JOB_KEY_FILE": KEY_FILE} if has_key else {}) | job.env
    return [{"name": name, "value": value} for name, value in variables.items()]


def key_comment(job: Job) -> list[str]:
    """The command that makes the Secret, as lines of a comment. The key is on no command line."""
    return [
        f"All ranks need the same key, from the Secret {job.secret}. Make it once, before the job:",
        "",
        "  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' |",
        f"    kubectl create secret generic {job.secret} --namespace {job.namespace} --from-file=job-key=/dev/stdin",
        "",
    ]


def _spec(job: Job) -> Manifest:
    context: Manifest = {"runAsUser": job.user_id, "seccompProfile": {"type": "RuntimeDefault"}}
    if job.user_id != 0:
        context["runAsNonRoot"] = True
    spec: Manifest = {"automountServiceAccountToken": False, "securityContext": context}
    if job.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return spec


def _rights(job: Job | None) -> Manifest:
    """job: of ranks; None for containers without any."""
    capabilities: Mapping[str, list[str]] = {"drop": ["ALL"]}
    if job is not None and job.ipc_lock:
        capabilities = {**capabilities, "add": ["IPC_LOCK"]}
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def _copies_key(job: Job) -> Manifest:
    return {
        "name": "job-key",
        "image": job.image,
        "command": ["/bin/sh", "-c", COPY_KEY],
        "securityContext": _rights(None),
        "volumeMounts": [
            {"name": "key", "mountPath": _KEY_FOLDER},
            {"name": "key-secret", "mountPath": _SECRET_FOLDER, "readOnly": True},
        ],
    }


def _secret(job: Job) -> Manifest:
    return {"name": "key-secret", "secret": {"secretName": job.secret, "defaultMode": _READ_BY_ALL}}

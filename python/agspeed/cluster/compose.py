# SPDX-License-Identifier: Apache-2.0
"""A compose file for Docker, or for Docker Swarm: a head, which starts the job, and nodes, all of one image. Pure.

All containers use the network of their host, so traffic passes no overlay network. sshd then needs a port that the
host's own sshd does not use: SSH_PORT. The image of `agspeed cluster render container` has both, and takes the ssh key
from the file that the compose file names as a secret.
"""

from __future__ import annotations

from agspeed.cluster import pods, rules
from agspeed.cluster.job import Job
from agspeed.cluster.pods import Manifest
from agspeed.errors import UserError

__all__ = ["comment", "render"]

_SECRET = "ssh-key"
_KEY_FILE = "/var/lib/agspeed/.ssh/id_ed25519"


def render(job: Job, is_swarm: bool) -> list[Manifest]:
    """Returns the compose file. Raises: UserError for fields that Docker cannot follow."""
    if not job.hosts:
        raise UserError("hosts: Docker does not know the job's hosts; name them, the head first, as in node0,node1.")
    if job.gpus and is_swarm:
        raise UserError(
            "gpus: Swarm reserves no GPUs for a container; leave it out, and make nvidia the default runtime."
        )
    head = _service(job, is_swarm) | {"command": _escaped(_launch(job))}
    node = _service(job, is_swarm) | {"command": ["agspeed-sshd"]}
    if is_swarm:
        at_head = f"node.hostname == {job.hosts[0]}"
        head["deploy"] = {
            "replicas": 1,
            "placement": {"constraints": [at_head]},
            "restart_policy": {"condition": "none"},
        }
        node["deploy"] = {
            "replicas": len(job.hosts) - 1,
            "placement": {"max_replicas_per_node": 1, "constraints": [at_head.replace("==", "!=")]},
        }
    services = {"head": head} | ({"node": node} if len(job.hosts) > 1 else {})
    # docker stack deploy adds the stack's name to the names of services only
    secret: Manifest = {"external": True, "name": f"{job.name}-ssh-key"} if is_swarm else {"file": "./agspeed_key"}
    found: Manifest = {"services": services, "secrets": {_SECRET: secret}}
    if is_swarm:
        return [found | {"networks": {"host-network": {"external": True, "name": "host"}}}]
    return [{"name": job.name, **found}]


def comment(job: Job, is_swarm: bool) -> list[str]:
    """Returns the commands that make the key and start the job."""
    if is_swarm:
        return [
            "Make the key of the job's logins once, on a manager, and start the job:",
            "",
            f"  ssh-keygen -t ed25519 -N '' -f agspeed_key && docker secret create {job.name}-ssh-key agspeed_key",
            f"  docker stack deploy -c FILE {job.name} && docker service logs -f {job.name}_head",
            "",
        ]
    return [
        "Make the key of the job's logins once, and copy it to the folder of this file on all hosts:",
        "",
        f"  ssh-keygen -t ed25519 -N '' -f agspeed_key && sudo chown {job.user_id} agspeed_key",
        "  docker compose up -d node    on each host but the first",
        "  docker compose up head       on the first host",
        "",
    ]


def _launch(job: Job) -> list[str]:
    hosts = ",".join(f"{host}:{job.slots}" for host in job.hosts)
    words = ["agspeed", "run", "-H", hosts, "--ssh-port", str(job.ssh_port)]
    return [*words, "--start-timeout", "120", *job.command]


def _service(job: Job, is_swarm: bool) -> Manifest:
    variables = {each["name"]: each["value"] for each in pods.env(job)} | {"SSH_PORT": str(job.ssh_port)}
    secret: Manifest = {"source": _SECRET, "target": _KEY_FILE}
    if is_swarm:
        secret |= {"uid": str(job.user_id), "gid": str(job.user_id), "mode": 0o400}
    service: Manifest = {
        "image": job.image,
        "user": str(job.user_id),
        "environment": dict(zip(variables, _escaped(list(variables.values())), strict=True)),
        "secrets": [secret],
        "cap_drop": ["ALL"],
    }
    if job.ipc_lock:
        service |= {"cap_add": ["IPC_LOCK"], "ulimits": {"memlock": -1}}
    if is_swarm:
        mount = {"type": "tmpfs", "target": "/dev/shm", "tmpfs": {"size": rules.bytes_of(job.shared_memory)}}
        return service | {"networks": ["host-network"], "volumes": [mount]}
    service |= {"network_mode": "host", "shm_size": rules.bytes_of(job.shared_memory)}
    service["security_opt"] = ["no-new-privileges:true"]
    if job.gpus:
        gpus = {"driver": "nvidia", "count": job.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    return service


def _escaped(words: list[str]) -> list[str]:
    """Compose replaces $NAME by variables of the caller. $$ stands for a $."""
    return [word.replace("$", "$$") for word in words]

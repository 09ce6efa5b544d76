# SPDX-License-Identifier: Apache-2.0
"""The rights of a job's accounts on a real API server, and agspeed's words if a pod cannot be reached.

The launcher of an MPIJob v1 is the only pod with a token. Its operator makes the role for it: newLauncherRole of
training-operator 1.9, which `role` follows. Other pods have an account without rights, and no token.

No pod runs here. A request to run a program in a pod that passes the server's check of rights fails afterwards, because
the pod is on no host.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agspeed.cluster.engines import ENGINES
from agspeed.cluster.job import Job
from agspeed.launch.hosts import Host
from agspeed.launch.starters import PodExec
from tests.python.cluster.kube import namespaces
from tests.python.cluster.kube.applied import pods_of
from tests.python.support import kube_server
from tests.python.support.kube_server import ADMIN, Server

pytestmark = [
    pytest.mark.kube,
    pytest.mark.skipif(kube_server.why_none() is not None, reason=kube_server.why_none() or "-"),
]
JOB, OTHER, HERE, ELSEWHERE = "rights", "others", "default", "elsewhere"
_NUM_WORKERS = 2
_FORBIDDEN, _WITHOUT_HOST = 403, 400
# A verb, a resource with the name of an object, a namespace, and whether JOB's launcher may do it.
RIGHTS = [
    ("create", f"pods/{JOB}-worker-0/exec", HERE, True),
    ("create", f"pods/{JOB}-worker-1/exec", HERE, True),
    ("create", f"pods/{JOB}-worker-2/exec", HERE, False),
    ("create", f"pods/{JOB}-launcher/exec", HERE, False),
    ("create", f"pods/{OTHER}-worker-0/exec", HERE, False),
    ("create", f"pods/{OTHER}-launcher/exec", HERE, False),
    ("create", f"pods/{JOB}-worker-0/exec", ELSEWHERE, False),
    ("create", f"pods/{JOB}-worker-0/attach", HERE, False),
    ("create", f"pods/{JOB}-worker-0/portforward", HERE, False),
    ("get", f"pods/{JOB}-worker-0", HERE, True),
    ("list", "pods", HERE, True),
    ("get", f"pods/{JOB}-worker-0", ELSEWHERE, False),
    ("get", f"pods/{JOB}-worker-0/log", HERE, False),
    ("create", "pods", HERE, False),
    ("delete", f"pods/{JOB}-worker-0", HERE, False),
    ("get", f"configmaps/{JOB}-config", HERE, False),
    ("get", f"configmaps/{OTHER}-config", HERE, False),
    ("list", "configmaps", HERE, False),
    ("update", f"configmaps/{JOB}-config", HERE, False),
    ("get", f"secrets/{JOB}-job-key", HERE, False),
    ("list", "secrets", HERE, False),
]
_METHODS = {"create": "POST", "delete": "DELETE", "get": "GET", "list": "GET", "update": "PUT"}


@dataclass(frozen=True)
class Bed:
    """Pods, config maps and Secrets of JOB and OTHER in one namespace, and of a second JOB elsewhere.

    Attributes:
        token: of the launcher of JOB.
    """

    server: Server
    token: str


@pytest.fixture(scope="module")
def bed(server: Server) -> Bed:
    namespaces.prepare(server, ELSEWHERE)
    token = started(server, JOB, HERE)
    started(server, OTHER, HERE)
    started(server, JOB, ELSEWHERE)
    return Bed(server, token)


def started(server: Server, name: str, namespace: str) -> str:
    """Makes what the operator makes for a rendered job. Returns the token of its launcher."""
    job = Job(name=name, image="team/train:1.0", command=("train.py",), replicas=_NUM_WORKERS, namespace=namespace)
    [manifest] = yaml.safe_load_all(ENGINES["mpijob"].render(job, {"api": "v1"}))
    core, launcher = f"/api/v1/namespaces/{namespace}", f"{name}-launcher"
    token = namespaces.account(server, namespace, launcher)
    namespaces.grant(server, namespace, launcher, role(manifest))
    for pod in pods_of([manifest]):
        kind = pod["metadata"]["name"].removeprefix(f"{name}-")
        for pod_name in workers(manifest) if kind == "worker" else [launcher]:
            pod["metadata"]["name"] = pod_name
            server.make(f"{core}/pods", pod)
    server.make(f"{core}/configmaps", {"metadata": {"name": f"{name}-config"}, "data": {"hostfile": ""}})
    server.make(f"{core}/secrets", {"metadata": {"name": f"{name}-job-key"}, "stringData": {"job-key": "00"}})
    return token


def workers(manifest: dict[str, Any]) -> list[str]:
    number = manifest["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    return [f"{manifest['metadata']['name']}-worker-{index}" for index in range(number)]


def role(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The rules of the launcher's role, as newLauncherRole makes them."""
    return [
        {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": workers(manifest)},
    ]


def review(server: Server, account: str, verb: str, resource: str, namespace: str) -> bool:
    """Asks the server whether an account may do something."""
    kind, _, rest = resource.partition("/")
    name, _, below = rest.partition("/")
    asked = {"namespace": namespace, "verb": verb, "resource": kind, "name": name, "subresource": below}
    spec = {"user": f"system:serviceaccount:{HERE}:{account}", "resourceAttributes": asked}
    found = server.make("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(found["status"]["allowed"])


@pytest.mark.parametrize(("verb", "resource", "namespace", "is_allowed"), RIGHTS)
def test_a_launcher_has_the_rights_of_its_row(
    verb: str, resource: str, namespace: str, is_allowed: bool, bed: Bed
) -> None:
    assert review(bed.server, f"{JOB}-launcher", verb, resource, namespace) is is_allowed
    path = f"/api/v1/namespaces/{namespace}/{resource}"
    query = "?command=true&stdin=true" if resource.endswith("/exec") else ""
    body = {} if verb in ("create", "update") and not query else None
    answer = bed.server.request(_METHODS[verb], path + query, body, token=bed.token)
    if not is_allowed:
        assert answer.status == _FORBIDDEN and f"{JOB}-launcher" in answer.message, answer
    elif query:
        assert answer.status == _WITHOUT_HOST and "does not have a host assigned" in answer.message, answer
    else:
        assert answer.status == 200, answer


def test_accounts_of_other_pods_have_no_rights(bed: Bed) -> None:
    """All other pods use the account `default`."""
    allowed = [row[:3] for row in RIGHTS if review(bed.server, "default", *row[:3])]
    assert not allowed


def test_a_role_follows_the_number_of_workers(bed: Bed) -> None:
    """The operator writes the role anew if `replicas` of a job changes."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{HERE}/roles/{OTHER}-launcher"
    rules = bed.server.request("GET", path).content["rules"]
    rules[1]["resourceNames"].append(f"{OTHER}-worker-{_NUM_WORKERS}")
    patched = bed.server.request("PATCH", path, {"rules": rules}, "application/merge-patch+json")
    assert patched.is_accepted, patched
    resources = [f"pods/{OTHER}-worker-{index}/exec" for index in range(_NUM_WORKERS + 2)]
    found = [review(bed.server, f"{OTHER}-launcher", "create", resource, HERE) for resource in resources]
    assert found == [True, True, True, False]


@pytest.mark.parametrize(
    ("pod", "said", "remedy"),
    [
        (f"{JOB}-worker-0", "does not have a host assigned", "try the connection alone"),
        (f"{OTHER}-worker-0", "is forbidden", "the launcher needs the right to create pods/exec for this pod"),
        (f"{JOB}-worker-9", "not found", "the pod is gone"),
    ],
)
def test_agspeed_says_why_a_pod_cannot_be_reached(pod: str, said: str, remedy: str, bed: Bed, tmp_path: Path) -> None:
    """The messages are kubectl's and the server's own."""
    kubectl = tmp_path / "kubectl"
    command = shlex.join(bed.server.kubectl_command(f"--namespace={HERE}", token=bed.token))
    kubectl.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    kubectl.chmod(0o700)
    starter, host = PodExec(str(kubectl)), Host(pod, 1)
    done = subprocess.run(
        starter.command(host, ["true"]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0 and done.stdout == "", done
    reason = starter.reason(host, done.returncode, done.stderr.splitlines())
    assert said in reason and remedy in reason, reason


def test_admin_may_do_everything(bed: Bed) -> None:
    """The tests above would mean little if the objects were not there."""
    for name in (f"pods/{JOB}-worker-1", f"configmaps/{JOB}-config", f"configmaps/{OTHER}-config"):
        assert bed.server.request("GET", f"/api/v1/namespaces/{HERE}/{name}", token=ADMIN).status == 200

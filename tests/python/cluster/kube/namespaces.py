# SPDX-License-Identifier: Apache-2.0
"""Namespaces with service accounts, and the policies for pods. A cluster's controllers make the accounts' tokens; here
the tests do, as no controller runs."""

from __future__ import annotations

import time
from typing import Any

from tests.python.support.kube_server import Server

__all__ = ["account", "grant", "policies", "prepare"]

_START_S = 60
_RBAC = "rbac.authorization.k8s.io"
_CONFINED = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "requiredDropCapabilities": ["ALL"],
    "volumes": ["configMap", "emptyDir", "secret"],
    "runAsUser": {"rule": "MustRunAsNonRoot"},
}
_FREE = {
    "privileged": True,
    "allowedCapabilities": ["*"],
    "volumes": ["*"],
    "hostNetwork": True,
    "hostPorts": [{"min": 0, "max": 65535}],
    "runAsUser": {"rule": "RunAsAny"},
}
_ANY = {"rule": "RunAsAny"}


def policies(server: Server) -> None:
    """Makes the policies `restricted`, as Kubernetes' documentation has it, and `privileged`, which ADMIN may use."""
    for name, rules, seccomp in (("restricted", _CONFINED, "runtime/default"), ("privileged", _FREE, "*")):
        profiles = {"seccomp.security.alpha.kubernetes.io/allowedProfileNames": seccomp}
        server.make(
            "/apis/policy/v1beta1/podsecuritypolicies",
            {
                "apiVersion": "policy/v1beta1",
                "kind": "PodSecurityPolicy",
                "metadata": {"name": name, "annotations": profiles},
                "spec": {"seLinux": _ANY, "supplementalGroups": _ANY, "fsGroup": _ANY, **rules},
            },
        )


def prepare(server: Server, name: str) -> None:
    """Makes a namespace, if it is not there, in which pods can be made."""
    made = server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert made.is_accepted or made.status == 409, made
    account(server, name, "default")
    until = time.monotonic() + _START_S
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "probe", "image": "probe:1.0"}]}}
    while not (found := server.request("POST", f"/api/v1/namespaces/{name}/pods?dryRun=All", pod)).is_accepted:
        assert time.monotonic() < until, f"no pod can be made in the namespace {name}: {found}"
        time.sleep(0.1)


def account(server: Server, namespace: str, name: str) -> str:
    """Makes a service account with a Secret for its pods. Returns a token with which it sends requests."""
    path = f"/api/v1/namespaces/{namespace}"
    secret = f"{name}-token"
    made = server.make(f"{path}/serviceaccounts", {"metadata": {"name": name}, "secrets": [{"name": secret}]})
    marks = {"kubernetes.io/service-account.name": name, "kubernetes.io/service-account.uid": made["metadata"]["uid"]}
    server.make(
        f"{path}/secrets",
        {
            "metadata": {"name": secret, "annotations": marks},
            "type": "kubernetes.io/service-account-token",
            "stringData": {"token": "of no use", "namespace": namespace, "ca.crt": "of no use"},
        },
    )
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    return str(server.make(f"{path}/serviceaccounts/{name}/token", request)["status"]["token"])


def grant(server: Server, namespace: str, name: str, rules: list[dict[str, Any]]) -> None:
    """Gives a service account the rights of a role of the same name."""
    path = f"/apis/{_RBAC}/v1/namespaces/{namespace}"
    server.make(f"{path}/roles", {"metadata": {"name": name}, "rules": rules})
    server.make(
        f"{path}/rolebindings",
        {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )

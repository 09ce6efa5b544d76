# SPDX-License-Identifier: Apache-2.0
"""Rendered objects on a server, and the pods and jobs that the operators would make of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from tests.python.cluster.kube.definitions import collection
from tests.python.support.kube_server import APPLY, Answer, Server

__all__ = ["apply", "apply_pod", "changes", "jobs_of", "kept", "pods_of"]

Manifest = dict[str, Any]


def apply(server: Server, manifest: Manifest | str, *, dry_run: bool = False) -> Answer:
    """Applies an object as `kubectl apply --server-side` does. manifest: data, or the YAML as it is."""
    found = yaml.safe_load(manifest) if isinstance(manifest, str) else manifest
    text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest)
    return _apply(server, _path(found), text, dry_run)


def kept(server: Server, manifest: Manifest) -> Manifest:
    """Returns an object as the server has it now."""
    answer = server.request("GET", _path(manifest))
    assert answer.is_accepted, answer
    found: Manifest = answer.content
    return found


def apply_pod(server: Server, manifest: Manifest) -> Answer:
    """Asks the server whether it would take a Pod or a Job. It keeps none."""
    group = "/apis/batch/v1" if manifest["kind"] == "Job" else "/api/v1"
    names = manifest["metadata"]
    path = f"{group}/namespaces/{names['namespace']}/{manifest['kind'].lower()}s/{names['name']}"
    return _apply(server, path, yaml.safe_dump(manifest), dry_run=True)


def changes(wanted: Any, kept: Any, at: str = "") -> list[str]:
    """Returns the places at which the server has something else than it was given. It may have added fields."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        return [place for key in wanted for place in changes(wanted[key], kept.get(key), f"{at}.{key}")]
    if isinstance(wanted, list) and isinstance(kept, list) and len(wanted) == len(kept):
        pairs = enumerate(zip(wanted, kept, strict=True))
        return [place for index, (each, other) in pairs for place in changes(each, other, f"{at}[{index}]")]
    return [] if wanted == kept else [f"{at}: {wanted!r} became {kept!r}"]


def pods_of(objects: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yields a Pod for each pod template of some objects that belong together, as their operator makes them."""
    for each in objects:
        for name, template in _templates(each, "pod"):
            pod = copy.deepcopy(template)
            for job in objects:
                if job["kind"] == "TrainJob":
                    _train(pod, job["spec"]["trainer"])
            names = {"name": f"{_name(objects)}-{name.lower()}", "namespace": each["metadata"]["namespace"]}
            pod["metadata"] = pod.get("metadata", {}) | names
            yield {"apiVersion": "v1", "kind": "Pod", **pod}


def jobs_of(objects: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yields a Job for each of the jobs of a JobSet or of a TrainingRuntime."""
    for each in objects:
        spec = each["spec"].get("template", {}).get("spec", each["spec"])
        for replicated in spec.get("replicatedJobs", ()):
            work = copy.deepcopy(replicated["template"]["spec"])
            work.pop("completionMode", None)  # Kubernetes has it since 1.21, and this server is older
            names = {"name": f"{_name(objects)}-{replicated['name']}-0", "namespace": each["metadata"]["namespace"]}
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": names, "spec": work}


def _name(objects: Sequence[Manifest]) -> str:
    """The name of the job, which is the last object. A runtime comes before it."""
    return str(objects[-1]["metadata"]["name"])


def _path(manifest: Manifest) -> str:
    names = manifest["metadata"]
    return f"{collection(manifest['apiVersion'], manifest['kind'], names['namespace'])}/{names['name']}"


def _apply(server: Server, path: str, text: str, dry_run: bool) -> Answer:
    query = "fieldManager=agspeed&force=true" + ("&dryRun=All" if dry_run else "")
    return server.request("PATCH", f"{path}?{query}", text, APPLY)


def _templates(value: Any, name: str) -> Iterator[tuple[str, Manifest]]:
    """Yields all pod templates, with the key above them, or with the name of the replicated job."""
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            yield name, value
            return
        for key, below in value.items():
            yield from _templates(below, name if key in ("spec", "template") else key)
    elif isinstance(value, list):
        for below in value:
            yield from _templates(below, below.get("name", name) if isinstance(below, dict) else name)


def _train(pod: Manifest, trainer: Manifest) -> None:
    """Trainer replaces these fields of the container `node`."""
    [container] = pod["spec"]["containers"]
    container |= {"image": trainer["image"], "command": trainer["command"]}
    container |= {"resources": trainer["resourcesPerNode"]} if "resourcesPerNode" in trainer else {}

# SPDX-License-Identifier: Apache-2.0
"""The operators' kinds on a server: CustomResourceDefinitions, made from the schemas of the other tests.

They hold the fields and types of `schemas.py`, and no limits of values, because the operators' own definitions have
hardly any. Pods get the types that the server itself has for them. AG_KUBE_DEFINITIONS names a folder with the
operators' own files, which are used in their place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.python.cluster import schemas
from tests.python.support.kube_server import Server

__all__ = ["collection", "install"]

Manifest = dict[str, Any]
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_START_S = 120
_KINDS = {kind: f"{kind.lower()}s" for _, kind in schemas.OBJECTS}
_REQUIRED = frozenset(("mpiReplicaSpecs", "pytorchReplicaSpecs", "runtimeRef", "template"))
"""The fields that both `schemas.py` and the operators' definitions require."""
_OF_PODS = "io.k8s.api.core.v1.PodTemplateSpec"
_OF_RESOURCES = "io.k8s.api.core.v1.ResourceRequirements"
_QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|"
    r"(\.[0-9]+))))?$",
    "x-kubernetes-int-or-string": True,
}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_SPECIAL: dict[str, Manifest] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": _QUANTITY,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"x-kubernetes-int-or-string": True},
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
        "type": "object",
        "properties": {"annotations": _TEXTS, "labels": _TEXTS, "name": {"type": "string"}},
    },
}
"""The server's types that definitions describe in a form of their own."""
_KEPT = ("type", "format", "required")


def collection(api: str, kind: str, namespace: str) -> str:
    """Returns the path of all objects of a kind in a namespace."""
    return f"/apis/{api}/namespaces/{namespace}/{_KINDS.get(kind, kind.lower() + 's')}"


def install(server: Server) -> None:
    """Teaches a server the operators' kinds, and waits until it knows them."""
    folder = os.environ.get("AG_KUBE_DEFINITIONS")
    found = _read(Path(folder)) if folder else _made(server)
    for each in found:
        _store_as_the_last(each["spec"]["versions"])
        server.make(_DEFINITIONS, each)
    for each in found:
        _wait_for(server, each["metadata"]["name"])


def _store_as_the_last(versions: list[Manifest]) -> None:
    """The server keeps the fields of the version that it stores. MPIJob's v2beta1 has all fields that we use, and v1
    has not. A cluster has only one of these versions, as each operator brings its own definition."""
    versions.sort(key=lambda version: str(version["name"]))
    for each in versions:
        each["storage"] = each is versions[-1]


def _wait_for(server: Server, name: str) -> None:
    until = time.monotonic() + _START_S
    while True:
        status = server.request("GET", f"{_DEFINITIONS}/{name}").content.get("status", {})
        conditions = {each["type"]: each for each in status.get("conditions", ())}
        if conditions.get("Established", {}).get("status") == "True":
            return
        assert time.monotonic() < until, f"the server has not taken the definition {name}: {conditions}"
        time.sleep(0.1)


def _read(folder: Path) -> list[Manifest]:
    """The definitions of a folder. Files of one name, as of MPIJob v1 and v2beta1, become one with both versions."""
    merged: dict[str, Manifest] = {}
    for path in sorted(folder.glob("*.yaml")):
        for each in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            first = merged.setdefault(each["metadata"]["name"], each)
            if first is not each:
                first["spec"]["versions"] += each["spec"]["versions"]
    missing = {f"{plural}." for plural in _KINDS.values()} - {name[: name.index(".") + 1] for name in merged}
    assert not missing, f"AG_KUBE_DEFINITIONS={folder} has no definition of {missing}"
    return list(merged.values())


def _made(server: Server) -> list[Manifest]:
    types = server.request("GET", "/openapi/v2").content["definitions"]
    of_server = {
        id(schemas.TEMPLATE): _inlined(types, {"$ref": _OF_PODS}),
        id(schemas.RESOURCES): _inlined(types, {"$ref": _OF_RESOURCES}),
        id(schemas.METADATA): {"type": "object"},
    }
    merged: dict[str, Manifest] = {}
    for (api, kind), schema in schemas.OBJECTS.items():
        group, _, version = api.partition("/")
        plural = _KINDS[kind]
        names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
        found = merged.setdefault(
            plural,
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": f"{plural}.{group}",
                    "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
                },
                "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": []},
            },
        )
        schema_of_version = {"openAPIV3Schema": _types(schema, of_server)}
        found["spec"]["versions"].append({"name": version, "served": True, "schema": schema_of_version})
    return list(merged.values())


def _types(schema: Mapping[str, Any], of_server: Mapping[int, Manifest]) -> Manifest:
    """The fields and types of a schema of `schemas.py`."""
    if found := of_server.get(id(schema)):
        return found
    if "enum" in schema:
        return _type_of(schema["enum"][0])
    found = {"type": schema["type"]}
    if properties := schema.get("properties"):
        found["properties"] = {name: _types(each, of_server) for name, each in properties.items()}
        if required := _REQUIRED & set(schema.get("required", ())):
            found["required"] = sorted(required)
    elif of_values := schema.get("additionalProperties"):
        found["additionalProperties"] = _types(of_values, of_server)
    if "items" in schema:
        found["items"] = _types(schema["items"], of_server)
    return found


def _type_of(value: Any) -> Manifest:
    if isinstance(value, bool):
        return {"type": "boolean"}
    assert isinstance(value, str), f"{value!r} has no type here"
    return {"type": "string"}


def _inlined(types: Mapping[str, Any], schema: Mapping[str, Any]) -> Manifest:
    """A type of the server without references, as definitions need it."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/definitions/")
        return _SPECIAL.get(name) or _inlined(types, types[name])
    found = {key: schema[key] for key in _KEPT if key in schema}
    if "properties" in schema:
        found["properties"] = {name: _inlined(types, each) for name, each in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            found[key] = _inlined(types, schema[key])
    return found

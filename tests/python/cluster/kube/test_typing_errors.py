# SPDX-License-Identifier: Apache-2.0
"""Typing errors in rendered manifests, and what finds them: a real API server, and the schemas of the other tests.

Each row states both verdicts, so a difference between them is a row and no surprise.
"""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
import yaml

from tests.python.cluster.jobs import BASE, ELASTIC, objects
from tests.python.cluster.kube.applied import apply, apply_pod, changes, jobs_of, pods_of
from tests.python.cluster.schemas import OBJECTS
from tests.python.support import kube_server
from tests.python.support.kube_server import Server

pytestmark = [
    pytest.mark.kube,
    pytest.mark.skipif(kube_server.why_none() is not None, reason=kube_server.why_none() or "-"),
]
_FLAGS = [
    *BASE, *ELASTIC[:2], "--memory", "16Gi", "--cpu", "2", "--env", "A=b", "--kueue-queue", "queue-1",
    *("--annotation", "k8s.v1.cni.cncf.io/networks=rail-1"),
]  # fmt: skip
MPI_V1, MPI_V2 = ("mpijob", "--api", "v1"), ("mpijob",)
PYTORCH, ELASTIC_PYTORCH = ("pytorchjob",), ("pytorchjob", "--min-replicas", "1")
TRAIN, JOB_SET = ("trainjob",), ("jobset",)
MPI_WORKER, MPI_LAUNCHER = "spec.mpiReplicaSpecs.Worker", "spec.mpiReplicaSpecs.Launcher"
MPI_POD = f"{MPI_WORKER}.template.spec"
MPI_MAIN = f"{MPI_POD}.containers.0"
MASTER = "spec.pytorchReplicaSpecs.Master"
WORK = "spec.replicatedJobs.0.template.spec"
RUNTIME_POD = f"spec.template.{WORK}.template.spec"
GONE = object()
"""In place of a value: the field is removed."""

DEFINITION = "refused by the definition"
DROPPED = "dropped by the server, and refused by kubectl"
PODS = "refused when pods are made"
ADMITTED = "admitted"
REFUSED, OVERLOOKED = "refused", "overlooked"
# The engine, the field with its wrong value, the verdict of the server, and the verdict of `schemas.py`.
ERRORS: list[tuple[tuple[str, ...], str, Any, str, str]] = [
    # Misspelled and missing fields
    (MPI_V2, "spec.slotPerWorker", 4, DROPPED, REFUSED),
    (MPI_V2, "spec.mpiReplicaSpecs", GONE, DEFINITION, REFUSED),
    (MPI_V2, "spec.runPolicy.cleanPodsPolicy", "All", DROPPED, REFUSED),
    (MPI_V2, f"{MPI_WORKER}.replica", 2, DROPPED, REFUSED),
    (MPI_V2, f"{MPI_WORKER}.template.specs", {}, DROPPED, REFUSED),
    (MPI_V2, f"{MPI_POD}.hostNetworks", True, DROPPED, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.comand", ["true"], DROPPED, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.securityContext.privilege", True, DROPPED, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.resources.limit", {"cpu": "2"}, DROPPED, REFUSED),
    (MPI_V2, f"{MPI_POD}.volumes.0.emptyDir.sizeLimits", "1Gi", DROPPED, REFUSED),
    (MPI_V1, "spec.slotPerWorker", 4, DROPPED, REFUSED),
    (PYTORCH, "spec.procPerNode", "4", DROPPED, REFUSED),
    (ELASTIC_PYTORCH, "spec.elasticPolicy.minReplica", 1, DROPPED, REFUSED),
    (TRAIN, "spec.runtimeRef", GONE, DEFINITION, REFUSED),
    (TRAIN, "spec.trainer.numNode", 2, DROPPED, REFUSED),
    (TRAIN, "spec.trainer.resourcePerNode", {}, DROPPED, REFUSED),
    (TRAIN, "0.spec.mlPolicy.pytorch", {}, DROPPED, REFUSED),
    (JOB_SET, "spec.network.enableDnsHostnames", True, DROPPED, REFUSED),
    (JOB_SET, "spec.replicatedJob", [], DROPPED, REFUSED),
    (JOB_SET, f"{WORK}.template", GONE, DEFINITION, REFUSED),
    # Values of a wrong type
    (MPI_V2, "spec.slotsPerWorker", "4", DEFINITION, REFUSED),
    (MPI_V2, "spec.slotsPerWorker", 2.5, DEFINITION, REFUSED),
    (MPI_V2, "spec.runPolicy", "Running", DEFINITION, REFUSED),
    (MPI_V2, "spec.runPolicy.backoffLimit", "0", DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_WORKER}.replicas", "two", DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.command", "agspeed-sshd", DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.env", {"A": "b"}, DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.env.0.value", 1, DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.ports.0.containerPort", "2222", DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.resources.limits.memory", "16GB", DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.resources.limits.cpu", "2 cores", DEFINITION, REFUSED),
    (MPI_V2, f"{MPI_POD}.securityContext.runAsUser", "1000", DEFINITION, REFUSED),
    (PYTORCH, "spec.nprocPerNode", 4, DEFINITION, REFUSED),
    (TRAIN, "spec.trainer.numProcPerNode", "auto", DEFINITION, REFUSED),
    (TRAIN, "0.spec.mlPolicy.numNodes", "2", DEFINITION, REFUSED),
    (JOB_SET, f"{WORK}.completions", "4", DEFINITION, REFUSED),
    # Names
    (MPI_V2, "metadata.name", "Train", DEFINITION, REFUSED),
    (MPI_V2, "metadata.name", "train_1", DEFINITION, REFUSED),
    (MPI_V2, "metadata.labels", {"kueue.x-k8s.io/queue-name": "my queue"}, DEFINITION, OVERLOOKED),
    (MPI_V2, "metadata.labels", {"kueue.x-k8s.io/queue-name": "a" * 64}, DEFINITION, OVERLOOKED),
    (MPI_V2, "metadata.name", "a" * 64, ADMITTED, REFUSED),
    (MPI_V2, "metadata.name", "1train", ADMITTED, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.name", "Worker_1", PODS, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.env.0.name", "A=B", PODS, OVERLOOKED),
    (MPI_V2, f"{MPI_WORKER}.template.metadata.annotations", {"a b": "c"}, PODS, OVERLOOKED),
    # Values that no pod can have
    (MPI_V2, f"{MPI_MAIN}.ports.0.containerPort", 70000, PODS, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.readinessProbe.tcpSocket.port", 0, PODS, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.resources.requests.memory", "64Gi", PODS, OVERLOOKED),
    (MPI_V2, f"{MPI_MAIN}.volumeMounts.0.name", "shared-memry", PODS, OVERLOOKED),
    (MPI_V2, f"{MPI_POD}.dnsPolicy", "ClusterFirstWithHostnet", PODS, REFUSED),
    (MPI_V2, f"{MPI_POD}.securityContext.seccompProfile.type", "RuntimeDefaults", PODS, REFUSED),
    (MPI_V2, f"{MPI_POD}.containers", [], PODS, REFUSED),
    (JOB_SET, f"{WORK}.template.spec.restartPolicy", "OnFailed", PODS, REFUSED),
    (JOB_SET, f"{WORK}.template.spec.restartPolicy", "Always", PODS, REFUSED),
    (JOB_SET, f"{WORK}.parallelism", -1, PODS, REFUSED),
    (JOB_SET, f"{WORK}.template.spec.volumes.2.secret.defaultMode", 800, PODS, REFUSED),
    (TRAIN, "spec.trainer.resourcesPerNode.requests.cpu", "4", PODS, OVERLOOKED),
    (TRAIN, f"0.{RUNTIME_POD}.volumes.2.secret.secretName", GONE, PODS, REFUSED),
    # Values that only the operators' own code knows, or an image's registry
    (MPI_V2, "spec.slotsPerWorker", 0, ADMITTED, REFUSED),
    (MPI_V2, "spec.launcherCreationPolicy", "WhenReady", ADMITTED, REFUSED),
    (MPI_V2, "spec.runPolicy.cleanPodPolicy", "Runing", ADMITTED, REFUSED),
    (MPI_V2, f"{MPI_LAUNCHER}.replicas", 2, ADMITTED, REFUSED),
    (MPI_V2, f"{MPI_WORKER}.replicas", -1, ADMITTED, REFUSED),
    (MPI_V2, f"{MPI_WORKER}.restartPolicy", "Sometimes", ADMITTED, REFUSED),
    (MPI_V2, f"{MPI_MAIN}.image", "team/train image:1.0", ADMITTED, OVERLOOKED),
    (MPI_V2, f"{MPI_POD}.volumes.0.emptyDir.medium", "memory", ADMITTED, REFUSED),
    (PYTORCH, "spec.nprocPerNode", "four", ADMITTED, REFUSED),
    (PYTORCH, f"{MASTER}.replicas", 2, ADMITTED, REFUSED),
    (ELASTIC_PYTORCH, "spec.elasticPolicy.rdzvBackend", "c10", ADMITTED, REFUSED),
    (TRAIN, "spec.runtimeRef.kind", "TrainingRuntimes", ADMITTED, REFUSED),
    (TRAIN, "0.spec.mlPolicy.numNodes", 0, ADMITTED, REFUSED),
    (JOB_SET, "spec.network.subdomain", "Train", ADMITTED, REFUSED),
    (JOB_SET, f"{WORK}.completionMode", "indexed", ADMITTED, REFUSED),
]


def with_error(found: list[Any], path: str, value: Any) -> tuple[list[Any], Any]:
    """Returns the objects with a wrong field, and the object that has it: the last one, unless a number says which."""
    changed = copy.deepcopy(found)
    keys = path.split(".")
    wrong = changed[int(keys.pop(0)) if keys[0].isdigit() else -1]
    at = wrong
    for key in keys[:-1]:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is GONE:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    return changed, wrong


def verdict(server: Server, changed: list[Any], wrong: Any) -> tuple[str, str]:
    """Returns the server's verdict, and what it said."""
    answer = apply(server, wrong, dry_run=True)
    if not answer.is_accepted:
        return DEFINITION, answer.message
    if dropped := changes(wrong, answer.content):
        return DROPPED, str(dropped)
    for each in [*pods_of(changed), *jobs_of(changed)]:
        answer = apply_pod(server, each)
        if not answer.is_accepted:
            return PODS, answer.message
    return ADMITTED, "nothing"


@pytest.mark.parametrize(
    ("engine", "path", "value", "expected", "by_schema"),
    ERRORS,
    ids=[f"{engine[0]} {path} {'gone' if value is GONE else value}" for engine, path, value, *_ in ERRORS],
)
def test_a_typing_error_gets_the_verdicts_of_its_row(
    engine: tuple[str, ...],
    path: str,
    value: Any,
    expected: str,
    by_schema: str,
    server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, *choices = engine
    found = objects(capsys, kind, *_FLAGS, *choices)
    right = copy.deepcopy(found)
    assert verdict(server, right, right[-1])[0] == ADMITTED
    changed, wrong = with_error(found, path, value)
    got, said = verdict(server, changed, wrong)
    assert got == expected, said
    errors = list(jsonschema.Draft202012Validator(OBJECTS[wrong["apiVersion"], wrong["kind"]]).iter_errors(wrong))
    assert (REFUSED if errors else OVERLOOKED) == by_schema, errors


@pytest.mark.parametrize(
    ("engine", "path", "value"),
    [row[:3] for row in ERRORS if row[3] == DROPPED],
    ids=[f"{row[0][0]} {row[1]}" for row in ERRORS if row[3] == DROPPED],
)
def test_kubectl_names_a_field_that_the_server_would_drop(
    engine: tuple[str, ...], path: str, value: Any, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *choices = engine
    changed, _ = with_error(objects(capsys, kind, *_FLAGS, *choices), path, value)
    done = server.kubectl("apply", "--dry-run=client", "-f", "-", text=yaml.safe_dump_all(changed))
    assert done.returncode == 1 and f'unknown field "{path.split(".")[-1]}"' in done.stderr, done


def test_a_kind_or_a_version_that_no_operator_has_is_refused(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    [job] = objects(capsys, "mpijob", *_FLAGS)
    for wrong in (job | {"apiVersion": "kubeflow.org/v2"}, job | {"kind": "MPIJobs"}):
        assert apply(server, wrong, dry_run=True).status in (400, 404)

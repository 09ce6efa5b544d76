# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of the objects that `agspeed cluster render` makes, for the fields that it uses.

Written by hand from the types of mpi-operator (v2beta1), training-operator 1.9 (v1), Kubeflow Trainer 2.2 and 2.3,
JobSet, Kubernetes' core and the Compose specification. Fields beyond these are refused, although an API server may know
them: a manifest that grows grows here as well.
"""

from __future__ import annotations

from typing import Any

__all__ = ["COMPOSE", "OBJECTS"]

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
ANY_TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?$"}
LABEL: Schema = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
TEXTS: Schema = {"type": "object", "additionalProperties": ANY_TEXT}


def count(least: int = 0, most: int = 2**31 - 1) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def many(of: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": of, "minItems": least}


def closed(required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": False,
    }


def either(*schemas: Schema) -> Schema:
    return {"oneOf": list(schemas)}


# --- Kubernetes -------------------------------------------------------------------------------------------------------

RESOURCES = closed(
    "limits requests",
    limits={"type": "object", "minProperties": 1, "additionalProperties": QUANTITY},
    requests={"type": "object", "minProperties": 1, "additionalProperties": QUANTITY},
)
RIGHTS = closed(
    "allowPrivilegeEscalation capabilities",
    allowPrivilegeEscalation=one_of(False),
    capabilities=closed("drop", drop=one_of(["ALL"]), add=one_of(["IPC_LOCK"])),
)
VARIABLE = either(
    closed("name value", name=TEXT, value=ANY_TEXT),
    closed(
        "name valueFrom",
        name=TEXT,
        valueFrom=closed("fieldRef", fieldRef=closed("fieldPath", fieldPath=TEXT)),
    ),
)
CONTAINER = closed(
    "name image securityContext",
    name=LABEL,
    image=TEXT,
    command=many(ANY_TEXT, 1),
    env=many(VARIABLE, 1),
    ports=many(closed("containerPort", name=LABEL, containerPort=count(1, 65535)), 1),
    readinessProbe=closed("tcpSocket", tcpSocket=closed("port", port=count(1, 65535)), periodSeconds=count(1)),
    resources=RESOURCES,
    securityContext=RIGHTS,
    volumeMounts=many(closed("name mountPath", name=LABEL, mountPath=TEXT, readOnly=FLAG), 1),
)
EMPTY_FOLDER = closed("medium", medium=one_of("Memory", "HugePages-2Mi"), sizeLimit=QUANTITY)
VOLUME = either(
    closed("name emptyDir", name=LABEL, emptyDir=EMPTY_FOLDER),
    closed(
        "name secret",
        name=LABEL,
        secret=closed("secretName defaultMode", secretName=LABEL, defaultMode=count(0, 0o777)),
    ),
)
POD = closed(
    "containers securityContext",
    automountServiceAccountToken=one_of(False),
    containers={**many(CONTAINER, 1), "maxItems": 1},
    dnsPolicy=one_of("ClusterFirstWithHostNet"),
    hostNetwork=one_of(True),
    initContainers=many(CONTAINER, 1),
    restartPolicy=one_of("Never", "OnFailure"),
    securityContext=closed(
        "runAsUser seccompProfile",
        runAsNonRoot=one_of(True),
        runAsUser=count(),
        seccompProfile=closed("type", type=one_of("RuntimeDefault")),
    ),
    volumes=many(VOLUME, 1),
)
TEMPLATE = closed("spec", metadata=closed("annotations", annotations=TEXTS), spec=POD)
METADATA = closed("name namespace", name=LABEL, namespace=TEXT, labels=TEXTS)


def an_object(api: str, kind: str, spec: Schema) -> Schema:
    return closed(
        "apiVersion kind metadata spec", apiVersion=one_of(api), kind=one_of(kind), metadata=METADATA, spec=spec
    )


# --- Kubeflow's v1 and v2beta1 ----------------------------------------------------------------------------------------

POLICY = closed(
    "cleanPodPolicy",
    backoffLimit=count(),
    cleanPodPolicy=one_of("None", "Running", "All"),
    schedulingPolicy=closed("minAvailable", minAvailable=count(1), queue=TEXT),
)


def replicas(least: int, most: int, template: Schema = TEMPLATE) -> Schema:
    return closed(
        "replicas template restartPolicy",
        replicas=count(least, most),
        restartPolicy=one_of("Never", "OnFailure"),
        template=template,
    )


MPI_REPLICAS = closed("Launcher Worker", Launcher=replicas(1, 1), Worker=replicas(1, 10_000))
MPI_V1 = closed(
    "slotsPerWorker runPolicy mpiReplicaSpecs",
    slotsPerWorker=count(1),
    runPolicy=POLICY,
    mpiReplicaSpecs=MPI_REPLICAS,
)
MPI_V2 = closed(
    "slotsPerWorker runPolicy mpiReplicaSpecs sshAuthMountPath",
    slotsPerWorker=count(1),
    runPolicy=POLICY,
    mpiReplicaSpecs=MPI_REPLICAS,
    sshAuthMountPath=TEXT,
    launcherCreationPolicy=one_of("AtStartup", "WaitForWorkersReady"),
)
PYTORCH = closed(
    "nprocPerNode runPolicy pytorchReplicaSpecs",
    nprocPerNode={"type": "string", "pattern": "^[1-9][0-9]*$"},
    runPolicy=POLICY,
    elasticPolicy=closed(
        "minReplicas maxReplicas rdzvBackend",
        minReplicas=count(1),
        maxReplicas=count(1),
        rdzvBackend=one_of("c10d", "etcd", "etcd-v2"),
        maxRestarts=count(),
    ),
    pytorchReplicaSpecs={
        **closed("", Master=replicas(1, 1), Worker=replicas(1, 10_000)),
        "minProperties": 1,
    },
)

# --- JobSet and Kubeflow Trainer --------------------------------------------------------------------------------------

WORK = closed(
    "template",
    backoffLimit=count(),
    completionMode=one_of("Indexed", "NonIndexed"),
    completions=count(1),
    parallelism=count(1),
    template=TEMPLATE,
)
JOB_SET = closed(
    "replicatedJobs",
    failurePolicy=closed("maxRestarts", maxRestarts=count()),
    network=closed("", enableDNSHostnames=FLAG, subdomain=LABEL, publishNotReadyAddresses=FLAG),
    replicatedJobs=many(
        closed(
            "name template",
            name=LABEL,
            replicas=count(1),
            template=closed("spec", metadata=closed("labels", labels=TEXTS), spec=WORK),
        ),
        1,
    ),
)
RUNTIME = closed(
    "mlPolicy template",
    mlPolicy=closed("numNodes torch", numNodes=count(1), torch=closed("")),
    template=closed("spec", spec=JOB_SET),
)
TRAIN = closed(
    "runtimeRef trainer",
    runtimeRef=closed(
        "name",
        name=LABEL,
        apiGroup=one_of("trainer.kubeflow.org"),
        kind=one_of("TrainingRuntime", "ClusterTrainingRuntime"),
    ),
    trainer=closed(
        "image command",
        image=TEXT,
        command={**many(ANY_TEXT, 1), "maxItems": 128},
        numNodes=count(1),
        numProcPerNode=count(1),
        resourcesPerNode=RESOURCES,
    ),
)

OBJECTS: dict[tuple[str, str], Schema] = {
    (api, kind): an_object(api, kind, spec)
    for api, kind, spec in (
        ("kubeflow.org/v1", "MPIJob", MPI_V1),
        ("kubeflow.org/v2beta1", "MPIJob", MPI_V2),
        ("kubeflow.org/v1", "PyTorchJob", PYTORCH),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", JOB_SET),
        ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", RUNTIME),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", TRAIN),
    )
}
"""(apiVersion, kind) -> its schema."""

# --- Compose ----------------------------------------------------------------------------------------------------------

PLACEMENT = closed("constraints", constraints=many(TEXT, 1), max_replicas_per_node=count(1))
DEVICE = closed("driver count capabilities", driver=TEXT, count=count(1), capabilities=many(TEXT, 1))
DEPLOY = closed(
    "",
    placement=PLACEMENT,
    replicas=count(1),
    resources=closed("reservations", reservations=closed("devices", devices=many(DEVICE, 1))),
    restart_policy=closed("condition", condition=one_of("none", "on-failure", "any")),
)
SERVICE = closed(
    "image user environment secrets cap_drop command",
    image=TEXT,
    user={"type": "string", "pattern": "^[0-9]+$"},
    environment=TEXTS,
    secrets=many(closed("source target", source=TEXT, target=TEXT, uid=TEXT, gid=TEXT, mode=count(0, 0o777)), 1),
    cap_add=one_of(["IPC_LOCK"]),
    cap_drop=one_of(["ALL"]),
    command=many(ANY_TEXT, 1),
    deploy=DEPLOY,
    network_mode=one_of("host"),
    networks=one_of(["host-network"]),
    security_opt=many(TEXT, 1),
    shm_size=count(1),
    ulimits=closed("memlock", memlock=one_of(-1)),
    volumes=many(
        closed(
            "type target tmpfs", type=one_of("tmpfs"), target=one_of("/dev/shm"), tmpfs=closed("size", size=count(1))
        )
    ),
)
SECRET = either(closed("file", file=TEXT), closed("external name", external=one_of(True), name=TEXT))
COMPOSE = closed(
    "services secrets",
    name=LABEL,
    services=closed("head", head=SERVICE, node=SERVICE),
    secrets={"type": "object", "additionalProperties": SECRET},
    networks=closed(
        "host-network", **{"host-network": closed("external name", external=one_of(True), name=one_of("host"))}
    ),
)

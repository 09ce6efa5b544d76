# SPDX-License-Identifier: Apache-2.0
"""A real API server takes every rendered object, keeps all of its fields, and takes the pods that come of it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from tests.python.cluster.jobs import ALL_FLAGS, BASE, ENGINES, objects, pod_specs, render
from tests.python.cluster.kube import namespaces
from tests.python.cluster.kube.applied import apply, apply_pod, changes, jobs_of, kept, pods_of
from tests.python.cluster.schemas import OBJECTS
from tests.python.support import kube_server
from tests.python.support.kube_server import Server

pytestmark = [
    pytest.mark.kube,
    pytest.mark.skipif(kube_server.why_none() is not None, reason=kube_server.why_none() or "-"),
]
RIGHTS = ["--ipc-lock", "--user-id", "0", "--huge-pages", "1Gi", "--cpu", "2", "--host-network", "--gpus", "1"]
QUEUES = ["--kueue-queue", "a.b", "--volcano-queue", "b", "--replicas", "3", "--interfaces", "^lo,docker0"]
LONG_NAMESPACE = "1" * 63
WORDS = ["a b", "--x=1", "yes", "null", "~", "1e3", "0x1f", "ü", '"', "'", "#", ": ", "- a", "{}", "[", "|", "$(A)"]
EXTREMES = [
    ("mpijob", "--name", "a" * 54),
    ("mpijob", "--replicas", "10000"),
    ("mpijob", "--slots", "4096"),
    ("mpijob", "--ssh-port", "1"),
    ("mpijob", "--ssh-port", "65535"),
    ("mpijob", "--user-id", "2147483647"),
    ("mpijob", "--namespace", LONG_NAMESPACE),
    ("mpijob", "--image", f"{'a' * 496}:1.0"),
    ("mpijob", "--cpu", "0.001"),
    ("mpijob", "--cpu", "1m"),
    ("mpijob", "--memory", "1k"),
    ("mpijob", "--memory", "9E"),
    ("mpijob", "--memory", f"{'9' * 30}Ei"),
    ("mpijob", "--shared-memory", "1k"),
    ("mpijob", "--huge-pages", "2Mi", "--memory", "1k"),
    ("mpijob", "--gpus", "64"),
    ("mpijob", "--kueue-queue", "a" * 63),
    ("mpijob", "--volcano-queue", ".".join(["a" * 62] * 4)),
    ("mpijob", "--annotation", f"{'.'.join(['a' * 62] * 4)}/{'b' * 63}=x"),
    ("mpijob", "--annotation", "A_b.c-d=x"),
    ("mpijob", "--env", f"_{'A' * 300}=x"),
    ("jobset", "--name", "a" * 45),
    ("jobset", "--job-key", "a" * 63),
    ("pytorchjob", "--name", "a" * 54),
    ("trainjob", "--name", "a" * 45),
    ("trainjob", "--image", f"{'a' * 496}:1.0"),
]
"""Flags with the longest, largest and smallest values that the rules allow."""
_ACCOUNTS = "/var/run/secrets/kubernetes.io/serviceaccount"
_STATUS = "/var/run/secrets/kubeflow/trainer"


@pytest.fixture(scope="module")
def confined(server: Server) -> str:
    """The token of an account that may make pods under the policy `restricted` alone."""
    policy = {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "resourceNames": ["restricted"]}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    token = namespaces.account(server, "default", "confined")
    namespaces.grant(server, "default", "confined", [policy | {"verbs": ["use"]}, pods])
    return token


@pytest.fixture(scope="module")
def long_namespace(server: Server) -> None:
    namespaces.prepare(server, LONG_NAMESPACE)


def cases() -> list[Any]:
    """Every engine with few flags, many, and all rights, as far as it knows the flags."""
    found = []
    for engine in ENGINES:
        for name, flags in (("few", []), ("all", ALL_FLAGS), ("rights", RIGHTS), ("queues", QUEUES)):
            has_volcano = engine[0] in ("mpijob", "pytorchjob")
            if name == "rights" and "v2beta1" in engine:
                continue  # its sshd runs as an ordinary user
            kept = flags if has_volcano else [each for each in flags if each not in ("--volcano-queue", "b")]
            found.append(pytest.param(engine, kept, id=f"{' '.join(engine)} {name}"))
    return found


@pytest.mark.parametrize(("engine", "flags"), cases())
def test_the_server_takes_rendered_objects_and_keeps_all_fields(
    engine: tuple[str, ...], flags: list[str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *choices = engine
    text = render(capsys, kind, *BASE, *flags, *choices)
    for document in text.split("---\n"):
        wanted = yaml.safe_load(document)
        jsonschema.validate(wanted, OBJECTS[wanted["apiVersion"], wanted["kind"]])
        answer = apply(server, document)
        assert answer.is_accepted, answer.message
        assert not changes(wanted, answer.content)


@pytest.mark.parametrize(("engine", "flags"), cases())
def test_the_server_takes_the_pods_and_jobs_of_rendered_objects(
    engine: tuple[str, ...], flags: list[str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *choices = engine
    found = objects(capsys, kind, *BASE, *flags, *choices)
    pods, jobs = list(pods_of(found)), list(jobs_of(found))
    assert pods and bool(jobs) == (kind in ("jobset", "trainjob"))
    for each in [*pods, *jobs]:
        answer = apply_pod(server, each)
        assert answer.is_accepted, answer.message
        assert not changes(each["spec"], answer.content["spec"])


@pytest.mark.parametrize(("kind", "flags"), [(kind, flags) for kind, *flags in EXTREMES])
def test_the_server_takes_all_that_the_rules_allow(
    kind: str, flags: list[str], long_namespace: None, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    found = objects(capsys, kind, *BASE, *flags)
    for each in found:
        answer = apply(server, each, dry_run=True)
        assert answer.is_accepted and not changes(each, answer.content), answer
    for each in [*pods_of(found), *jobs_of(found)]:
        answer = apply_pod(server, each)
        assert answer.is_accepted, answer.message


@pytest.mark.parametrize("kind", ["mpijob", "jobset"])
@pytest.mark.parametrize("word", WORDS)
def test_the_server_reads_a_word_as_it_was_typed(
    kind: str, word: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    text = render(capsys, kind, *BASE, "--env", f"A={word}", command=("train.py", word))
    answer = apply(server, text, dry_run=True)
    assert answer.is_accepted, answer.message
    main = next(pod_specs(answer.content["spec"]))["containers"][0]
    assert main["command"][-2:] == ["train.py", word] and {"name": "A", "value": word} in main["env"]


@pytest.mark.parametrize("engine", ENGINES, ids=" ".join)
def test_kubectl_applies_what_is_printed(
    engine: tuple[str, ...], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *choices = engine
    text = render(capsys, kind, *BASE, *ALL_FLAGS, *choices).replace("name: train", "name: applied")
    applied = list(yaml.safe_load_all(text))
    assert text.startswith("# ") or kind == "mpijob"
    generations = []
    for _ in range(2):
        done = server.kubectl("apply", "-f", "-", text=text)
        said = done.stdout.split("\n")[:-1]
        assert done.returncode == 0 and len(said) == len(applied), done
        # kubectl calls an object "configured" if its definition has added defaults in lists, although nothing changes.
        assert all(line.endswith(("created", "configured", "unchanged")) for line in said), done
        generations.append([kept(server, each)["metadata"]["generation"] for each in applied])
    assert generations[0] == generations[1]


def test_only_the_launcher_of_v1_gets_a_token(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with_token = []
    for kind, *choices in ENGINES:
        for pod in pods_of(objects(capsys, kind, *BASE, *choices)):
            answer = apply_pod(server, pod)
            assert answer.is_accepted, answer.message
            mounts = [each["mountPath"] for each in answer.content["spec"]["containers"][0].get("volumeMounts", ())]
            if _ACCOUNTS in mounts:
                with_token.append((kind, *choices[:2], pod["metadata"]["name"]))
    assert set(with_token) == {("mpijob", "--api", "v1", "train-launcher")}


def test_the_server_takes_what_trainer_adds_for_the_status(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Trainer's plugin TrainJobStatus adds a token of its own. It is the only one of the pod."""
    [pod] = pods_of(objects(capsys, "trainjob", *BASE))
    audience = "trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/train/status"
    sources = [
        {"serviceAccountToken": {"audience": audience, "expirationSeconds": 3600, "path": "token"}},
        {"configMap": {"name": "train-tls-config", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    pod["spec"]["volumes"].append({"name": "kubeflow-trainer-token", "projected": {"sources": sources}})
    mount = {"name": "kubeflow-trainer-token", "mountPath": _STATUS, "readOnly": True}
    pod["spec"]["containers"][0]["volumeMounts"].append(mount)
    answer = apply_pod(server, pod)
    assert answer.is_accepted and not changes(pod["spec"], answer.content["spec"]), answer
    mounts = [each["mountPath"] for each in answer.content["spec"]["containers"][0]["volumeMounts"]]
    assert _STATUS in mounts and _ACCOUNTS not in mounts


@pytest.mark.parametrize("engine", ENGINES, ids=" ".join)
def test_a_policy_for_confined_pods_refuses_only_what_was_asked_for(
    engine: tuple[str, ...], server: Server, confined: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *choices = engine
    more = [] if "v2beta1" in choices else [["--ipc-lock", "--user-id", "0"]]
    for flags, expected in [([], [201]), *(((each), [403]) for each in [["--host-network"], *more])]:
        pods = list(pods_of(objects(capsys, kind, *BASE, *flags, *choices)))
        answers = [
            server.request(
                "POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?dryRun=All", pod, token=confined
            )
            for pod in pods
        ]
        assert [answer.status for answer in answers] == expected * len(pods), (flags, answers)

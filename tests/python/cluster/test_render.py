# SPDX-License-Identifier: Apache-2.0
"""Rendered manifests fit the schemas of their engines, and ask for no more rights than the job does."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agspeed.cluster import pods
from agspeed.cluster.job import Job
from tests.python.cluster.jobs import ALL_FLAGS, BASE, COMPOSE_BASE, ELASTIC, ENGINES, objects, pod_specs, render
from tests.python.cluster.schemas import COMPOSE, OBJECTS

WITH_KEY = ("jobset", "pytorchjob", "trainjob")


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec["containers"], *spec.get("initContainers", ())]


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container.get("env", ())}


@pytest.mark.parametrize("engine", ENGINES, ids=" ".join)
@pytest.mark.parametrize("flags", [[], ALL_FLAGS], ids=["few", "all"])
def test_objects_fit_the_schemas(engine: tuple[str, ...], flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    kind, *choices = engine
    found = objects(capsys, kind, *BASE, *flags, *choices)
    assert found
    for each in found:
        jsonschema.validate(each, OBJECTS[each["apiVersion"], each["kind"]])


@pytest.mark.parametrize("engine", ENGINES, ids=" ".join)
def test_pods_have_no_rights_that_the_job_does_not_ask_for(
    engine: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *choices = engine
    text = render(capsys, kind, *BASE, *choices)
    assert not {"IPC_LOCK", "hostPath", "hostNetwork", "privileged", "hugepages-2Mi", "Role"} & set(text.split())
    for each in objects(capsys, kind, *BASE, *choices):
        for spec in pod_specs(each):
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert all(one["securityContext"]["capabilities"] == {"drop": ["ALL"]} for one in containers(spec))


@pytest.mark.parametrize("kind", ["mpijob", *WITH_KEY])
def test_rights_and_huge_pages_are_there_on_request(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    api = ["--api", "v1"] if kind == "mpijob" else []
    asked = ["--ipc-lock", "--user-id", "0", "--huge-pages", "1Gi", "--cpu", "2", "--host-network"]
    found = objects(capsys, kind, *BASE, *api, *asked)
    specs = [spec for each in found for spec in pod_specs(each)]
    adding = [one for spec in specs for one in containers(spec) if "add" in one["securityContext"]["capabilities"]]
    assert adding and all(one["name"] in ("worker", "pytorch", "node") for one in adding)
    assert all(spec["hostNetwork"] and spec["dnsPolicy"] == "ClusterFirstWithHostNet" for spec in specs)
    assert "hugepages-2Mi" in str(found) and "HugePages-2Mi" in str(found)


def test_an_elastic_mpijob_takes_its_hosts_from_the_operator(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {}
    for api in ("v1", "v2beta1"):
        [job] = objects(capsys, "mpijob", *BASE, *ELASTIC, "--slots", "4", "--api", api)
        replicas = job["spec"]["mpiReplicaSpecs"]
        assert replicas["Worker"]["replicas"] == 2 and job["spec"]["slotsPerWorker"] == 4
        assert job["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"] == 2  # a worker and the launcher
        commands[api] = " ".join(replicas["Launcher"]["template"]["spec"]["containers"][0]["command"])
    elastic = "agspeed run -np 8 --min-np 4 --max-np 12 --host-discovery-script /etc/mpi/discover_hosts.sh"
    assert commands["v1"] == f"{elastic} --slots-per-host 4 train.py"
    assert commands["v2beta1"] == f"{elastic} --slots-per-host 4 --ssh-port 2222 train.py"


def test_only_the_launcher_that_execs_into_pods_has_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    with_token = {}
    for api in ("v1", "v2beta1"):
        [job] = objects(capsys, "mpijob", *BASE, "--api", api)
        specs = job["spec"]["mpiReplicaSpecs"]
        with_token[api] = [
            name for name in specs if "automountServiceAccountToken" not in specs[name]["template"]["spec"]
        ]
    assert with_token == {"v1": ["Launcher"], "v2beta1": []}


def test_an_mpijob_of_fixed_size_waits_for_its_workers(capsys: pytest.CaptureFixture[str]) -> None:
    [job] = objects(capsys, "mpijob", *BASE, "--replicas", "2", "--ssh-port", "33")
    launcher, worker = (
        job["spec"]["mpiReplicaSpecs"][name]["template"]["spec"]["containers"][0] for name in ("Launcher", "Worker")
    )
    assert " ".join(launcher["command"]) == "agspeed run -np 2 --hostfile /etc/mpi/hostfile --ssh-port 33 train.py"
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 33 and variables(worker)["SSH_PORT"] == "33"
    assert job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"


def test_an_elastic_pytorchjob_has_workers_only(capsys: pytest.CaptureFixture[str]) -> None:
    [job] = objects(capsys, "pytorchjob", *BASE, *ELASTIC, "--slots", "2")
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    assert job["spec"]["elasticPolicy"] == {
        "minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d", "maxRestarts": 100
    }  # fmt: skip
    [job] = objects(capsys, "pytorchjob", *BASE, "--replicas", "3")
    assert {name: each["replicas"] for name, each in job["spec"]["pytorchReplicaSpecs"].items()} == {
        "Master": 1, "Worker": 2
    }  # fmt: skip


def test_a_trainjob_uses_the_runtime_that_is_rendered_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    runtime, job = objects(capsys, "trainjob", *BASE, "--replicas", "4", "--slots", "2", "--memory", "8Gi")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert runtime["metadata"]["namespace"] == job["metadata"]["namespace"]
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (4, 2)
    assert trainer["resourcesPerNode"]["limits"] == {"memory": "8Gi"}
    assert trainer["command"] == ["torchrun", "--no-python", "train.py"]


def test_the_pods_of_a_jobset_find_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    [job] = objects(capsys, "jobset", *BASE, "--replicas", "4", "--slots", "2")
    [spec] = pod_specs(job)
    given = variables(spec["containers"][0])
    assert (given["PET_NNODES"], given["PET_NPROC_PER_NODE"]) == ("4", "2")
    assert given["PET_MASTER_ADDR"] == f"train-node-0-0.{job['spec']['network']['subdomain']}"
    work = job["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (work["completionMode"], work["completions"], work["parallelism"]) == ("Indexed", 4, 4)


@pytest.mark.parametrize("kind", WITH_KEY)
def test_ranks_read_the_key_from_a_file_and_no_manifest_holds_it(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = render(capsys, kind, *BASE, "--namespace", "team-a")
    assert "kubectl create secret generic train-job-key --namespace team-a --from-file=job-key=/dev/stdin" in text
    assert "AGSPEED_JOB_KEY\n" not in text
    for each in objects(capsys, kind, *BASE):
        for spec in pod_specs(each):
            [main], [copies] = spec["containers"], spec["initContainers"]
            assert variables(main)["AGSPEED_JOB_KEY_FILE"] == pods.KEY_FILE
            assert [mount["name"] for mount in main["volumeMounts"]] == ["shared-memory", "key"]
            assert [mount["name"] for mount in copies["volumeMounts"]] == ["key", "key-secret"]
            secret = next(volume for volume in spec["volumes"] if volume["name"] == "key-secret")
            assert secret["secret"]["secretName"] == "train-job-key"


def test_the_copied_key_is_private(tmp_path: Path) -> None:
    """agspeed refuses a key that others can read, and Kubernetes' mounted file is such a file for an ordinary user."""
    (tmp_path / "job-key").write_text(32 * "ab")
    (tmp_path / "job-key").chmod(0o444)
    command = pods.COPY_KEY.replace("/run/agspeed-secret", str(tmp_path)).replace(pods.KEY_FILE, str(tmp_path / "copy"))
    for _ in range(2):  # a restarted pod copies again
        subprocess.run(["/bin/sh", "-c", command], check=True, timeout=60)
    copy = tmp_path / "copy"
    assert copy.read_text() == 32 * "ab"
    assert (copy.stat().st_mode & 0o777, copy.stat().st_uid) == (0o600, os.geteuid())


@pytest.mark.parametrize("flags", [[], ["--slots", "2", "--gpus", "2", "--ipc-lock", "--env", "A=$b"]])
def test_a_compose_file_fits_the_specification(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    [file] = objects(capsys, "compose", *COMPOSE_BASE, *flags)
    jsonschema.validate(file, COMPOSE)
    assert {service["network_mode"] for service in file["services"].values()} == {"host"}
    assert {service["environment"]["SSH_PORT"] for service in file["services"].values()} == {"2222"}
    assert len({service["image"] for service in file["services"].values()}) == 1


def test_a_swarm_has_one_head_and_three_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    [file] = objects(capsys, "compose", *COMPOSE_BASE, "--engine", "swarm", "--ssh-port", "33")
    jsonschema.validate(file, COMPOSE)
    deployed = {name: service["deploy"] for name, service in file["services"].items()}
    assert {name: each["replicas"] for name, each in deployed.items()} == {"head": 1, "node": 3}
    assert deployed["head"]["placement"]["constraints"] == ["node.hostname == node0"]
    assert deployed["node"]["placement"]["max_replicas_per_node"] == 1
    assert "--ssh-port 33 " in " ".join(file["services"]["head"]["command"])


def test_compose_leaves_dollars_of_the_command_alone(capsys: pytest.CaptureFixture[str]) -> None:
    [file] = objects(capsys, "compose", *COMPOSE_BASE, command=("echo", "$HOME"))
    assert file["services"]["head"]["command"][-2:] == ["echo", "$$HOME"]


def test_a_file_describes_a_job_and_flags_override_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'name = "train"\nimage = "team/train:1.0"\ncommand = ["python", "train.py"]\nreplicas = 2\nslots = 8\n'
        'ssh_port = 33\nmemory = "32Gi"\ncpu = 4\nhosts = ["node0", "node1"]\nenv = { A = "b" }\n'
    )
    made = {}
    for kind in ("mpijob", "pytorchjob", "trainjob", "jobset", "compose"):
        made[kind] = objects(capsys, kind, "--file", str(file), command=())
    [job] = objects(capsys, "mpijob", "--file", str(file), "--slots", "2", command=("other.py",))
    assert job["spec"]["slotsPerWorker"] == 2 and made["mpijob"][0]["spec"]["slotsPerWorker"] == 8
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"][-1] == "other.py"
    assert made["compose"][0]["services"]["head"]["command"][-2:] == ["python", "train.py"]


def test_jobs_are_made_from_python(tmp_path: Path) -> None:
    job = Job(name="train", image="team/train:1.0", command=("python", "train.py"), replicas=2)
    assert (job.least, job.most, job.is_elastic, job.secret) == (2, 2, False, "train-job-key")


def test_the_words_of_a_command_arrive_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "python",
        "a b.py",
        "--x=1",
        "",
        "yes",
        "1e3",
        "0x1f",
        "ü",
        '"',
        "'",
        "#",
        ": ",
        "- a",
        "{}",
        "[",
        "|",
        "~",
    )
    for kind, more in itertools.product(("mpijob", "jobset"), [BASE]):
        [job] = objects(capsys, kind, *more, command=words)
        commands = [tuple(spec["containers"][0].get("command", ())) for spec in pod_specs(job)]
        assert commands[0][-len(words) :] == words

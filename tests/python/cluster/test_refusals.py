# SPDX-License-Identifier: Apache-2.0
"""Typing errors in a description are refused in one sentence that names the field, and nothing is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.cluster.jobs import BASE, COMPOSE_BASE, refused

GOOD = {
    "name": '"train"',
    "image": '"team/train:1.0"',
    "command": '["python", "train.py"]',
    "replicas": "2",
}
# The wrong field with its value in TOML, the engine. Further lines come after a newline.
ERRORS = [
    ("name", '"Train"', "mpijob"),
    ("name", '"train_1"', "mpijob"),
    ("name", '"1train"', "jobset"),
    ("name", '"train-"', "trainjob"),
    ("name", '""', "pytorchjob"),
    ("name", "7", "mpijob"),
    ("name", f'"{"a" * 64}"', "mpijob"),
    ("name", f'"{"a" * 55}"', "mpijob"),
    ("name", f'"{"a" * 50}"', "jobset"),
    ("image", '"train image:1.0"', "mpijob"),
    ("image", '"Team/train:1.0"', "mpijob"),
    ("image", '"team/train"', "mpijob"),
    ("image", '"team/train:latest"', "jobset"),
    ("image", '"https://example.com/train:1.0"', "mpijob"),
    ("image", '"team/train@sha256:12"', "mpijob"),
    ("image", f'"{"a" * 497}:1.0"', "trainjob"),
    ("command", '"python train.py"', "mpijob"),
    ("command", "[]", "jobset"),
    ("command", '["python", 3]', "trainjob"),
    ("command", '["python", "a\\nb"]', "trainjob"),
    ("command", str(["a"] * 127), "trainjob"),
    ("replicas", "0", "mpijob"),
    ("replicas", "-1", "jobset"),
    ("replicas", '"2"', "mpijob"),
    ("replicas", "2.0", "mpijob"),
    ("replicas", "true", "mpijob"),
    ("slots", "0", "pytorchjob"),
    ("slots", "5000", "pytorchjob"),
    ("min_replicas", "3", "mpijob"),
    ("max_replicas", "1", "pytorchjob"),
    ("min_replicas", "1", "trainjob"),
    ("max_replicas", "3", "jobset"),
    ("namespace", '"team a"', "mpijob"),
    ("namespace", '"team.a"', "mpijob"),
    ("cpu", '"4 cores"', "mpijob"),
    ("cpu", "0", "mpijob"),
    ("memory", '"16GB"', "mpijob"),
    ("memory", '"16 Gi"', "mpijob"),
    ("memory", '"16"', "mpijob"),
    ("memory", '"0Gi"', "mpijob"),
    ("memory", "16", "mpijob"),
    ("gpus", "-1", "jobset"),
    ("shared_memory", '"1gb"', "jobset"),
    ("huge_pages", '"1Gi"', "mpijob"),
    ("huge_pages", '"3M"\ncpu = 2', "mpijob"),
    ("huge_pages", '"1023k"\ncpu = 2', "jobset"),
    ("ipc_lock", '"yes"', "mpijob"),
    ("ipc_lock", "true", "jobset"),
    ("host_network", "1", "mpijob"),
    ("interfaces", '["eth0", "eth1 "]', "mpijob"),
    ("interfaces", '["eth0", "^eth1"]', "mpijob"),
    ("annotations", '{ "a b" = "c" }', "mpijob"),
    ("annotations", '{ networks = ["rail-1"] }', "mpijob"),
    ("annotations", '{ ".a/b" = "c" }', "mpijob"),
    ("annotations", '{ "a..b/c" = "d" }', "mpijob"),
    ("env", '{ "A-B" = "c" }', "mpijob"),
    ("env", "{ A = 1 }", "mpijob"),
    ("env", '{ AGSPEED_JOB_KEY = "0123456789abcdef" }', "mpijob"),
    ("env", '{ SSH_PORT = "33" }', "mpijob"),
    ("env", '{ WORLD_SIZE = "2" }', "pytorchjob"),
    ("env", '{ PET_NNODES = "2" }', "trainjob"),
    ("user_id", "0", "mpijob"),
    ("user_id", "2147483648", "mpijob"),
    ("job_key", '"Key"', "jobset"),
    ("kueue_queue", '"my queue"', "mpijob"),
    ("kueue_queue", f'"{"a" * 64}"', "mpijob"),
    ("volcano_queue", '"Q"', "mpijob"),
    ("ssh_port", "70000", "mpijob"),
    ("hosts", "[]", "compose"),
    ("hosts", '["node0", "node0"]', "compose"),
    ("hosts", '["node0", "-oProxyCommand"]', "compose"),
    ("replica", "2", "mpijob"),
    ("imagee", '"team/train:1.0"', "mpijob"),
]


@pytest.mark.parametrize(("field", "value", "kind"), ERRORS)
def test_a_typing_error_in_a_file_is_refused_with_its_field(
    field: str, value: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_text("".join(f"{name} = {text}\n" for name, text in {**GOOD, field: value}.items()))
    sentence = refused(capsys, kind, "--file", str(file))
    assert sentence.startswith("agspeed: ") and sentence.endswith((".", "?"))
    assert f"{field}:" in sentence or f"'{field}'" in sentence, sentence


@pytest.mark.parametrize("field", ["name", "image", "command"])
def test_a_missing_field_is_named(field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.toml"
    file.write_text("".join(f"{name} = {text}\n" for name, text in GOOD.items() if name != field))
    assert refused(capsys, "mpijob", "--file", str(file)).startswith(f"agspeed: {field}: it is missing; ")


@pytest.mark.parametrize(
    ("kind", "flags", "word"),
    [
        ("mpijob", [*BASE, "--replicas", "two", "train.py"], "--replicas"),
        ("mpijob", [*BASE, "--api", "v2", "train.py"], "--api"),
        ("trainjob", [*BASE, "--trainer-version", "2.1", "train.py"], "--trainer-version"),
        ("jobset", [*BASE, "--min-replicas", "1", "train.py"], "--min-replicas"),
        ("mpijob", [*BASE, "--env", "A", "train.py"], "env: 'A' has no value"),
        ("mpijob", [*BASE, "--memory", "16GB", "train.py"], "memory: '16GB' is not valid"),
        ("compose", [*COMPOSE_BASE, "--gpus", "1", "--engine", "swarm", "train.py"], "gpus: Swarm"),
        ("compose", [*BASE, "train.py"], "hosts: "),
        ("mpijob", [*BASE, "--file", "/nowhere/job.toml", "train.py"], "--file /nowhere/job.toml: No such file"),
    ],
)
def test_a_wrong_flag_is_named(kind: str, flags: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert word in refused(capsys, kind, *flags)


@pytest.mark.parametrize("content", [b"name = train\n", b"\xff\xfe", b"# " + (1 << 20) * b"x"])
def test_a_file_that_is_no_description_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    file.write_bytes(content)
    assert f"--file {file} is " in refused(capsys, "mpijob", "--file", str(file))

# SPDX-License-Identifier: Apache-2.0
"""The conditions in a report fit its schema, and collecting them needs no torch."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from agspeed.reporting import environment, model


def test_description_completes_a_header():
    data = model.empty_report("m")
    data["header"] |= environment.describe()
    model.validate(data)
    assert data["header"]["machine"]["cores"] >= 1
    assert data["header"]["versions"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")


def test_rank_and_world_size_come_from_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (environment.describe()["rank"], environment.describe()["world_size"]) == (3, 8)
    monkeypatch.setenv("RANK", "not a number")
    assert environment.describe()["rank"] is None


def test_the_command_is_that_of_this_process(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "train.py", "--name", "two words"])
    assert environment.command() == "python -X dev train.py --name 'two words'"


@pytest.mark.parametrize(
    ("nodes", "rendezvous"),
    [("1", "--standalone"), ("2", "--nnodes=2 --node-rank=1 --master-addr=node-a --master-port=29500")],
)
def test_the_command_of_a_rank_is_the_one_that_starts_all_of_its_node(monkeypatch, nodes, rendezvous):
    variables = {"LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "MASTER_ADDR": "node-a", "MASTER_PORT": "29500"}
    for name, value in (variables | {"GROUP_WORLD_SIZE": nodes, "TORCHELASTIC_RUN_ID": "none"}).items():
        monkeypatch.setenv(name, value)
    for program in ("train.py --epochs 3", "-m package.train"):
        monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "-u", *program.split()])
        assert environment.command() == f"torchrun --nproc-per-node=4 {rendezvous} {program}"


def test_describing_does_not_load_torch():
    script = "import sys; from agspeed.reporting import environment as e; e.describe(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "words",
    [
        "--password {}",
        "--db-password={}",
        "--hf_token {} --epochs 3",
        "+trainer.api_key={}",
        "WANDB_API_KEY={}",
        "--authToken {}",
        "--index https://user:{}@host/simple",
        "--url https://host/x?page=1&access_token={}&n=2",
        "-c connect(user='me',password='{}')",
    ],
)
def test_the_command_shows_no_secret(monkeypatch, words):
    """A report names the options of the command, but contains no secret."""
    secret = "hunter2-correct-horse"
    given = ["python", "train.py", *words.format(secret).split()]
    monkeypatch.setattr(sys, "orig_argv", given)
    shown = environment.command()
    assert secret not in shown and "***" in shown
    assert len(shlex.split(shown)) == len(given)


@pytest.mark.parametrize("prefix", ["hf_", "sk-", "ghp_", "glpat-", "AKIA"])
def test_a_token_is_known_by_its_beginning(monkeypatch, prefix):
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", f"{prefix}0123456789abcdefXYZ"])
    assert environment.command() == "python train.py '***'"


def test_the_command_stays_one_that_can_be_repeated_where_nothing_is_secret(monkeypatch):
    words = (
        "--max-tokens 512 --eos-token 2 --key-dim=64 --tokenizer bert --compass north --lr 1e-3 --data https://host/x"
    )
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", *words.split()])
    assert environment.command() == f"python train.py {words}"

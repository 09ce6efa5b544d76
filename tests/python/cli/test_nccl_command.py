# SPDX-License-Identifier: Apache-2.0
"""`agspeed nccl env` and `agspeed doctor --nccl`: the variables, and why NCCL would not use the plug-in."""

from __future__ import annotations

import json
import os

import pytest

from agspeed import nccl
from agspeed.cli import nccl_checks
from agspeed.errors import UserError


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A plug-in beside the package, in a folder whose name a shell would split."""
    path = tmp_path / "a folder" / "libnccl-net-agspeed.so"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(nccl, "library", lambda: path)
    for name in ("NCCL_NET_PLUGIN", "NCCL_NET"):
        monkeypatch.delenv(name, raising=False)
    return path


def statuses(found, monkeypatch) -> dict[str, str]:
    monkeypatch.setattr(nccl_checks, "_probe", lambda: found)
    return {check.name: check.status for check in nccl_checks.check_nccl()}


HEALTHY = {
    "nccl": 22809,
    "init": 0,
    "devices": 1,
    "said": "authenticated over 10.0.0.5 (eth0), 20000 Mbit/s",
    "arrived": True,
    "traffic": ["eth0: 4194304 bytes sent, 4194304 received, 0 connections lost"],
}


def test_the_variables_are_those_of_a_shell(plugin, agspeed):
    assert agspeed("nccl", "env").out == f"export NCCL_NET_PLUGIN='{plugin}'\n"


def test_without_a_plugin_the_command_says_so(plugin, agspeed):
    plugin.unlink()
    result = agspeed("nccl", "env")
    assert result.code == 2
    assert str(plugin) in result.err


def test_enable_sets_the_variables_and_leaves_others_alone(plugin, monkeypatch):
    monkeypatch.setenv("NCCL_NET_PLUGIN", "")
    monkeypatch.delenv("NCCL_NET_PLUGIN")
    nccl.enable()
    assert os.environ["NCCL_NET_PLUGIN"] == str(plugin)
    nccl.enable()
    monkeypatch.setenv("NCCL_NET_PLUGIN", "aws-ofi")
    with pytest.raises(UserError, match="aws-ofi"):
        nccl.enable()


@pytest.mark.parametrize(
    ("environment", "texts"),
    [
        ({}, ["NCCL_NET_PLUGIN is not set"]),
        ({"NCCL_NET_PLUGIN": "none"}, ["NCCL_NET_PLUGIN=none names another"]),
        ({"NCCL_NET_PLUGIN": "agspeed", "NCCL_NET": "Socket"}, ["NCCL_NET=Socket"]),
        ({"NCCL_NET_PLUGIN": "agspeed,other", "NCCL_NET": "AGSPEED"}, []),
    ],
)
def test_what_is_in_the_way_is_named(plugin, environment, texts):
    found = nccl.obstacles(environment)
    assert len(found) == len(texts)
    assert all(text in sentence for text, sentence in zip(texts, found, strict=True))


@pytest.mark.parametrize(
    ("version", "table"),
    [(21300, 6), (21903, 7), (22005, 8), (22304, 8), (22403, 9), (22706, 10), (22809, 11), (22907, 11), (23003, 12)],
)
def test_a_version_of_nccl_takes_its_table(version, table):
    assert nccl_checks.table_of(version) == table


def test_versions_before_the_first_table_take_none():
    assert nccl_checks.table_of(21200) is None


def test_a_healthy_installation_passes(plugin, monkeypatch):
    monkeypatch.setenv("NCCL_NET_PLUGIN", str(plugin))
    assert set(statuses(HEALTHY, monkeypatch).values()) == {"ok"}


def test_a_plugin_that_cannot_start_fails_with_its_own_words(plugin, monkeypatch):
    found = {**HEALTHY, "init": 2, "said": "no interface is up"}
    assert statuses(found, monkeypatch)["nccl plug-in"] == "fail"
    assert any("no interface is up" in check.detail for check in nccl_checks.check_nccl())


def test_a_message_that_does_not_arrive_fails_with_the_plugins_words(plugin, monkeypatch):
    found = {**HEALTHY, "arrived": False, "why": "no peer answers"}
    assert statuses(found, monkeypatch)["nccl message"] == "fail"
    assert any("no peer answers" in check.detail for check in nccl_checks.check_nccl())


def test_without_nccl_the_plugin_is_of_no_use(plugin, monkeypatch):
    found = {key: value for key, value in HEALTHY.items() if key != "nccl"} | {"nccl_error": "no such file"}
    assert statuses(found, monkeypatch)["nccl"] == "warn"


@pytest.mark.slow
def test_the_doctor_asks_the_built_plugin(agspeed, monkeypatch):
    if not nccl.library().exists():
        pytest.skip(f"{nccl.library()} is not built")
    monkeypatch.setenv("AGSPEED_SOCKET_IFNAME", "=lo")
    checks = json.loads(agspeed("doctor", "--nccl", "--json").out)["checks"]
    [plugin] = [check for check in checks if check["name"] == "nccl plug-in"]
    assert plugin["status"] == "ok"
    assert "127.0.0.1 (lo)" in plugin["detail"]
    [message] = [check for check in checks if check["name"] == "nccl message"]
    assert message["status"] == "ok"
    assert "lo: 4194304 bytes sent, 4194304 received, 0 connections lost" in message["detail"]

# SPDX-License-Identifier: Apache-2.0
"""agspeed doctor: each failed line has a remedy, and the exit code says whether any failed."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import agspeed as agspeed_package
from agspeed import config
from agspeed.cli import checks, net_checks, net_ranks
from agspeed.errors import UserError
from tests.python.support.processes import is_alive, left_after_a_while


@pytest.fixture
def found(monkeypatch):
    """The findings of the child process, for tests to change."""
    answer = {
        "torch": "2.11.0+cpu",
        "threads": 1,
        "cuda": False,
        "native": {"torch": "2.11.0+cpu", "llvm": "22.1.8", "python": "3.12.1"},
    }
    monkeypatch.setattr(checks, "probe", lambda: answer)
    monkeypatch.setattr(checks, "extensions", lambda: {(2, 11): Path("_native_torch211.so")})
    return answer


_PROBES_FOR_LONG = """
from agspeed.cli.probe import run_child
run_child("import os, time; print(os.getpid(), file=open({file!r}, 'w')); time.sleep(60)", 60.0)
"""


def test_a_probe_ends_with_the_doctor_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", _PROBES_FOR_LONG.format(file=str(file))]) as doctor:
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.05)
        probe = int(file.read_text())
        assert is_alive(probe)
        doctor.kill()
    assert not left_after_a_while([probe])


def only(check) -> checks.Check:
    (result,) = check()
    return result


def test_healthy_installation_passes(found, agspeed, monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 8 << 30)
    result = agspeed("doctor")
    assert result.code == 0, result.out
    assert "✓ torch" in result.out and "✗" not in result.out


def test_every_line_that_fails_or_warns_has_a_remedy(found, agspeed, monkeypatch):
    del found["torch"], found["native"]
    found |= {"torch_error": "ImportError: no", "native_error": "ImportError: no"}
    monkeypatch.setenv("AGSPEED_MODE", "trubo")
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    document = json.loads(agspeed("doctor", "--json").out)
    bad = [check for check in document["checks"] if check["status"] != "ok"]
    assert {check["name"] for check in bad} >= {"torch", "native extension", "settings", "inductor"}
    assert all(check["remedy"] and check["detail"] for check in bad)
    assert agspeed("doctor").code == 1


@pytest.mark.parametrize(("have", "built"), [("2.11.0+cu130", "2.11.0+cpu"), ("2.11.1", "2.11.0")])
def test_another_flavour_or_patch_of_the_same_torch_fits_and_is_named(found, have, built):
    found["torch"] = have
    found["native"]["torch"] = built
    result = only(checks.native)
    assert result.status == "ok" and built in result.detail and have in result.detail


def test_a_torch_without_an_extension_fails_with_the_list_of_those_that_have_one(found):
    del found["native"]
    found["native_error"] = (
        "ImportError: the native extension was built for torch 2.11 and 2.15, but 2.16.0 is installed"
    )
    result = only(checks.native)
    assert result.status == "fail" and "2.11 and 2.15" in result.detail and "pip install" in result.remedy


def test_a_part_of_torch_that_does_not_fit_is_a_warning(found):
    found["torch_parts"] = {"dynamo": "", "inductor": "part `inductor`: torch 2.99.0 has no config; inductor is lost"}
    found["torch_remedy"] = "`pip install --upgrade agspeed` mends it"
    result = only(checks.torch_parts)
    assert result.status == "warn" and "torch 2.99.0 has no config" in result.detail and "upgrade" in result.remedy
    found["torch_parts"] = {"dynamo": "", "inductor": ""}
    assert only(checks.torch_parts) == ("parts of torch", "ok", "dynamo, inductor: as expected", "")


def test_extension_for_another_python_is_named(found, monkeypatch):
    monkeypatch.setattr(checks, "extensions", dict)
    monkeypatch.setattr(checks, "native_files", lambda: ["_native.cpython-399-x86_64-linux-gnu.so"])
    result = only(checks.native)
    assert result.status == "fail" and "cpython-399" in result.detail
    monkeypatch.setattr(checks, "native_files", list)
    assert "not built" in only(checks.native).detail


def test_old_torch_fails(found):
    found["torch"] = "2.10.1"
    assert only(checks.torch).status == "fail"


def test_more_threads_than_cores_is_a_warning(found):
    found["threads"] = 4096
    result = only(checks.threads)
    assert result.status == "warn" and result.remedy.startswith("export OMP_NUM_THREADS=")


def test_cache_that_would_be_ignored_fails(found, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("AGSPEED_CACHE_DIR", str(folder))
    assert only(checks.cache).status == "ok"
    folder.chmod(0o777)
    assert "can be written by others (mode 0777)" in only(checks.cache).detail
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("AGSPEED_CACHE_DIR", str(blocker / "cache"))
    assert "cannot be written" in only(checks.cache).detail


def test_a_user_without_a_name_is_noticed(found, monkeypatch):
    assert only(checks.user).status == "ok"
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    result = only(checks.user)
    assert result.status == "fail" and "export USER=" in result.remedy
    monkeypatch.delenv("HOME")
    assert only(checks.home).status == "fail"


@pytest.mark.parametrize(("variable", "check"), [("HOME", checks.home), ("TMPDIR", checks.temporary_files)])
def test_a_folder_that_cannot_be_written_is_noticed(found, tmp_path, monkeypatch, variable, check):
    monkeypatch.setenv(variable, str(tmp_path))
    assert (only(check).status, list(tmp_path.iterdir())) == ("ok", [])
    for wrong in (tmp_path / "missing", Path("/proc")):
        monkeypatch.setenv(variable, str(wrong))
        result = only(check)
        assert result.status == "fail" and f"{wrong} cannot be written" in result.detail and variable in result.remedy


FULL = """
import os, sys
from pathlib import Path
from agspeed.cli import checks
with open(Path(sys.argv[1], "fills it"), "wb", buffering=0) as file:
    try:
        while file.write(bytes(1 << 16)): pass
    except OSError:
        pass
for variable, check in (("TMPDIR", checks.temporary_files), ("HOME", checks.home), ("AGSPEED_CACHE_DIR", checks.cache)):
    os.environ[variable] = sys.argv[1]
    print(*(f"{each.status}: {each.detail}" for each in check()))
"""


def test_a_full_disk_is_noticed(tmp_path):
    mount = 'mount -t tmpfs -o size=2m,mode=700 none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    environment = {**os.environ, "PYTHONPATH": str(Path(agspeed_package.__file__).parents[1])}
    done = subprocess.run(
        [*command, str(tmp_path), sys.executable, FULL],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    expected = f"fail: {tmp_path} cannot be written: No space left on device"
    assert done.stdout.splitlines() == [expected] * 3


def test_little_room_is_a_warning(found, monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=5 << 20))
    for check in (checks.temporary_files, checks.cache):
        assert only(check).status == "warn" and "5.0 MiB free" in only(check).detail


def test_a_settings_file_that_does_not_count_is_a_warning(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / config.FILE_NAME).write_text("mode = 'off'")
    (tmp_path / config.FILE_NAME).chmod(0o666)
    result = next(check for check in checks.settings() if check.status != "ok")
    assert result.status == "warn" and "is ignored because other users may write to it" in result.detail
    assert "unset" not in result.remedy


def test_network_file_system_is_a_warning(found, monkeypatch):
    monkeypatch.setattr(checks, "filesystem", lambda path: "nfs4")
    result = only(checks.cache)
    assert result.status == "warn" and "nfs4" in result.detail


def test_unknown_variables_fail_and_the_kill_switch_is_noticed(found, monkeypatch):
    monkeypatch.setenv("AGSPEED_BUDGET", "3")
    monkeypatch.setenv("AGSPEED_UNRELATED_THING", "3")
    monkeypatch.setenv("AGSPEED_COMM_MODE", "encrypted")
    monkeypatch.setenv("AGSPEED_DISABLE", "1")
    lines = list(checks.settings())
    failed = {check.detail: check.remedy for check in lines if check.status == "fail"}
    assert list(failed) == [
        "AGSPEED_BUDGET is not a setting (did you mean AGSPEED_BUDGET_S?); it is ignored",
        "AGSPEED_UNRELATED_THING is not a setting (`agspeed config --explain` lists all); it is ignored",
    ]
    assert all("unset AGSPEED_" in remedy for remedy in failed.values())
    assert any("every model runs eagerly" in check.detail for check in lines)


def test_every_setting_is_shown_with_its_origin_and_no_secret(found, monkeypatch):
    monkeypatch.setenv("AGSPEED_JOB_KEY", "correct horse battery staple")
    shown = {check.detail.split(":")[0]: check.detail for check in checks.settings() if check.name == "setting"}
    assert list(shown) == [setting.name for setting in config.SETTINGS]
    assert shown["job_key"] == "job_key: set (environment variable AGSPEED_JOB_KEY)"
    assert shown["peer_timeout_ms"] == "peer_timeout_ms: 10000 (default)"


def test_what_only_the_loaded_package_knows_about_settings_is_said(found):
    found["settings_error"] = "backend 'natvie' (AGSPEED_BACKENDS) is unknown"
    assert (only(checks.settings).status, only(checks.settings).detail) == ("fail", found["settings_error"])


def test_a_setting_of_the_network_is_checked_too(found, monkeypatch):
    monkeypatch.setenv("AGSPEED_PEER_TIMEOUT_MS", "soon")
    result = only(checks.settings)
    assert result.status == "fail" and "environment variable AGSPEED_PEER_TIMEOUT_MS" in result.detail


def test_canary_that_dies_is_reported_with_its_last_words(monkeypatch):
    monkeypatch.setattr(checks, "run_child", lambda script, timeout: (-11, "starting\nboom\n"))
    result = only(checks.compile_canary)
    assert result.status == "fail" and "code -11: boom" in result.detail and result.remedy


def test_file_system_of_a_path_is_found():
    assert checks.filesystem(Path("/proc")) == "proc"
    assert checks.filesystem(Path(os.devnull)) != ""


# --- options that check other hosts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--peer", ","], "--peer names no host"),
        (["--peer", "a", "--port", "0"], "--port 0: write a port"),
        (["--listen", "--port", "high"], "--port high: write a port"),
        (["--listen", "--peer", "a"], "--listen goes alone"),
    ],
)
def test_mistakes_about_other_hosts_are_one_sentence(agspeed, options, words):
    result = agspeed("doctor", *options)
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 4, False)),
        ({"RANK": "2", "WORLD_SIZE": "3"}, (2, 3, True)),
        ({"RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "0", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, (1, 2, True)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, (0, 1, False)),
        ({}, None),
    ],
)
def test_the_launcher_says_which_host_this_is(variables, expected):
    place = net_ranks.place({"MASTER_ADDR": "node0", "MASTER_PORT": "29500", **variables})
    assert place == expected
    with pytest.raises(UserError, match="the launcher's variables"):
        net_ranks.place({"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "RANK": "first", "WORLD_SIZE": "2"})


def test_a_peer_is_looked_at_after_this_host(found, agspeed, monkeypatch):
    row = {"name": "lo", "address": "127.0.0.1", "prefix_bits": 8, "is_up": True, "is_selected": True, "reason": "-"}
    found["network"] = {"variable": "", "selector": "", "interfaces": [row]}
    monkeypatch.setattr(net_checks, "probe", lambda: found)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = agspeed("doctor", "--peer", "127.0.0.1", "--port", port)
    assert result.code == 1 and "✗ peer             127.0.0.1 refuses connections" in result.out
    assert "no answer" in result.out and "agspeed doctor --listen" in result.out

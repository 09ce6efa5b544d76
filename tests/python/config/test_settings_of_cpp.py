# SPDX-License-Identifier: Apache-2.0
"""Settings that C++ reads: passed by Python, or read from the environment if there is no Python. Every case runs in a
process of its own, forked from one that has loaded the extension but not used it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agspeed import config, native
from agspeed.config import SETTINGS, Setting
from tests.python.support.settings_values import SECRET, as_toml, ids, valid

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

ROWS = [setting for setting in SETTINGS if setting.goes_to_cpp]

SERVER = """
import json, os, sys, tempfile
import torch
from agspeed import _native
for line in sys.stdin:
    order = json.loads(line)
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.environ.update(order["variables"])
            os.chdir(order["folder"])
            code = 1
            try:
                exec(order["script"], {"given": order["given"]})
                code = 0
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        answer = {"code": os.waitstatus_to_exitcode(status), "output": output.read().decode()}
    print(json.dumps(answer), flush=True)
"""
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def run(server: subprocess.Popen[str], tmp_path: Path) -> Run:
    """`run(script, given, **variables)` returns (exit code, output) of a process in the test's folder."""

    def run(script: str, given: Any = None, **variables: str) -> tuple[int, str]:
        assert server.stdin is not None and server.stdout is not None
        order = {"script": script, "given": given, "variables": variables, "folder": str(tmp_path)}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        return answer["code"], answer["output"]

    return run


# Says whether C++ has a value: once C++ has read a setting, it accepts the same value again and refuses any other.
HAS_VALUE = """
from agspeed import _native, errors
try:
    _native.explain_interfaces()
except errors.UserError:
    pass  # the selector names no interface of this host
name, expected, other = given
expected, other = (value.encode() if isinstance(value, str) else value for value in (expected, other))
_native.configure({name: expected})
try:
    _native.configure({name: other})
except errors.UserError as error:
    assert "has another value now" in str(error), error
else:
    raise AssertionError(f"{name} is not {expected!r}")
"""
BY_PYTHON = "from agspeed import native; native.load()\n" + HAS_VALUE


def own_file(config_home: Path) -> Path:
    """Returns the path of the user's own settings file, for this XDG_CONFIG_HOME."""
    folder = config_home / "agspeed"
    folder.mkdir()
    return folder / config.FILE_NAME


def given(setting: Setting) -> tuple[str, Any, Any]:
    """Returns (name, a valid value as C++ stores it, another valid value)."""
    value = valid(setting)[1]
    if isinstance(value, bool):
        return setting.name, value, not value
    if isinstance(value, int):
        return setting.name, value, value + 1
    return setting.name, value.reveal() if setting.secret else str(value), "another"


@pytest.mark.parametrize("setting", ids(ROWS))
@pytest.mark.parametrize("script", [pytest.param(BY_PYTHON, id="python"), pytest.param(HAS_VALUE, id="cpp-alone")])
def test_a_variable_reaches_cpp(run: Run, setting: Setting, script: str) -> None:
    for variable in setting.variables:
        assert run(script, given(setting), **{variable: valid(setting)[2]}) == (0, "")


@pytest.mark.parametrize("setting", ids([setting for setting in ROWS if not setting.secret]))
def test_a_file_reaches_cpp(run: Run, tmp_path: Path, setting: Setting) -> None:
    file = own_file(tmp_path) if setting.own_file else tmp_path / config.FILE_NAME
    file.write_text(f"{setting.toml_key} = {as_toml(valid(setting)[0])}\n")
    assert run(BY_PYTHON, given(setting), XDG_CONFIG_HOME=str(tmp_path)) == (0, "")


def test_interfaces_of_a_file_are_selected(run: Run, tmp_path: Path) -> None:
    (tmp_path / config.FILE_NAME).write_text('socket_interfaces = "=lo"\n')
    script = """
from agspeed import native
found = native.load().explain_interfaces()
print(found["selector"], found["variable"])
"""
    assert run(script) == (0, f"=lo {tmp_path}/agspeed.toml:1\n")


# --- wrong ------------------------------------------------------------------------------------------------------------

DESCRIBE = "from agspeed import _native; print(_native.describe_transport())"


def test_cpp_alone_keeps_the_default_and_says_so_once(run: Run) -> None:
    code, output = run(
        DESCRIBE + DESCRIBE.replace("from", ";from"), AGSPEED_PEER_TIMEOUT_MS="soon", AGSPEED_SOCKET_IFNAME="lo"
    )
    assert code == 0
    said = 'agspeed: AGSPEED_PEER_TIMEOUT_MS="soon" is not valid: it must be a whole number from 1 to 2147483647; using'
    assert output.count(said) == 1


def test_python_refuses_what_cpp_alone_would_replace(run: Run) -> None:
    script = "from agspeed import native; native.load()"
    code, output = run(script, AGSPEED_PEER_TIMEOUT_MS="soon")
    assert code == 1
    assert output.startswith("UserError: ") and "'soon'" in output and "AGSPEED_PEER_TIMEOUT_MS" in output


def test_a_malformed_protection_keeps_the_network_closed(run: Run) -> None:
    code, output = run(DESCRIBE, AGSPEED_COMM_MODE="encrpyted", AGSPEED_SOCKET_IFNAME="lo")
    assert code == 1 and 'UserError: AGSPEED_COMM_MODE="encrpyted"' in output


@pytest.mark.parametrize("place", ["variable", "file"])
def test_a_protection_without_its_key_is_refused(run: Run, tmp_path: Path, place: str) -> None:
    own_file(tmp_path).write_text('comm_mode = "authenticated"\n' if place == "file" else "")
    variables = {"XDG_CONFIG_HOME": str(tmp_path)}
    if place == "variable":
        variables["AGSPEED_COMM_MODE"] = "authenticated"
    script = "from agspeed import native; native.load()\n" + DESCRIBE
    code, output = run(script, AGSPEED_SOCKET_IFNAME="lo", **variables)
    assert code == 1 and output.startswith("UserError: mode authenticated")


def test_an_unknown_variable_is_named_by_cpp_alone(run: Run) -> None:
    code, output = run(DESCRIBE, AGSPEED_JOB_KYE=SECRET, AGSPEED_SOCKET_IFNAME="lo")
    assert code == 0
    assert output.count("AGSPEED_JOB_KYE") == output.count("AGSPEED_JOB_KEY?") == 1
    assert SECRET not in output


def test_under_strict_an_unknown_variable_is_an_error_of_cpp_alone(run: Run) -> None:
    code, output = run(DESCRIBE, AGSPEED_DEBUGG="info", AGSPEED_STRICT="1", AGSPEED_SOCKET_IFNAME="lo")
    assert code == 1 and "UserError: AGSPEED_DEBUGG" in output


INIT = """
import torch
torch.distributed.init_process_group("agspeed", store=torch.distributed.HashStore(), rank=0, world_size=1)
torch.distributed.new_group([0])
"""


def test_a_process_group_warns_once_of_an_unknown_variable(run: Run) -> None:
    code, output = run("import agspeed" + INIT, AGSPEED_DEBUGG="info", AGSPEED_SOCKET_IFNAME="lo")
    assert code == 0, output
    assert output.count("AGSPEED_DEBUGG") == 1


def test_under_strict_a_process_group_refuses_an_unknown_variable(run: Run) -> None:
    code, output = run("import agspeed" + INIT, AGSPEED_DEBUGG="info", AGSPEED_STRICT="on", AGSPEED_SOCKET_IFNAME="lo")
    assert code == 1 and "UserError: AGSPEED_DEBUGG" in output


# --- too late ---------------------------------------------------------------------------------------------------------


def test_a_setting_that_was_read_before_is_not_changed(run: Run, tmp_path: Path) -> None:
    (tmp_path / config.FILE_NAME).write_text("peer_timeout_ms = 5000\nsocket_interfaces = 'lo'\n")
    script = """
import torch, agspeed
from agspeed import _native, native
before = _native.explain_interfaces()
model = torch.nn.Linear(2, 2)
for attempt in (lambda: agspeed.optimize(model), native.load):
    try:
        attempt()
    except agspeed.UserError as error:
        print(error)
assert _native.explain_interfaces() == before
assert agspeed.status(model).reason == "not optimized"
"""
    code, output = run(script)
    assert code == 0, output
    first, second = output.splitlines()
    assert first == second
    assert "socket_interfaces" in first


def test_a_variable_set_between_two_groups_is_no_silent_surprise(run: Run) -> None:
    script = (
        "import os, agspeed" + INIT + "os.environ['AGSPEED_PEER_TIMEOUT_MS'] = '5000'; torch.distributed.new_group([0])"
    )
    code, output = run(script, AGSPEED_SOCKET_IFNAME="lo")
    assert code == 1 and "UserError: the setting peer_timeout_ms" in output


def test_a_variable_set_before_the_first_group_counts(run: Run) -> None:
    script = (
        "import os, agspeed; from agspeed import native; native.load(); os.environ['AGSPEED_SOCKET_IFNAME'] = '=lo'"
    )
    assert run(script + INIT + HAS_VALUE, ("socket_interfaces", "=lo", "eth0")) == (0, "")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"peer_timeout": 5000}, "C++ reads no setting called peer_timeout"),
        ({"peer_timeout_ms": "5000"}, "peer_timeout_ms was handed over as a value of a wrong type"),
        ({"shared_memory": 1}, "shared_memory was handed over as a value of a wrong type"),
    ],
)
def test_nothing_of_a_wrong_handing_over_is_applied(run: Run, values: Any, said: str) -> None:
    script = """
from agspeed import _native, errors
try:
    _native.configure({"debug": "trace", **given})
except errors.UserError as error:
    print(error)
_native.explain_interfaces()
_native.configure({"debug": "warn"})
"""
    code, output = run(script, values)
    assert code == 0 and said in output


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_a_secret_that_has_changed_is_not_shown(run: Run) -> None:
    script = """
import os
from agspeed import _native, native
_native.explain_interfaces()
os.environ["AGSPEED_JOB_KEY"] = "another " + os.environ["AGSPEED_JOB_KEY"]
native.load()
"""
    code, output = run(script, AGSPEED_JOB_KEY=SECRET, AGSPEED_DEBUG="trace")
    assert code == 1 and "UserError: the setting job_key" in output
    assert SECRET not in output


@pytest.mark.slow
def test_a_report_and_the_compile_child_have_no_secret(run: Run) -> None:
    script = """
import os, torch, agspeed
from agspeed.tuning.child.process import Child
model = torch.nn.Linear(2, 2)
agspeed.optimize(model, mode="fast-start")
model(torch.ones(1, 2)).sum().backward()
document = agspeed.report(model).to_dict()
assert document["header"]["settings"]["job_key"]["value"] == "set"
print(document)
child = Child()
child._spawn()
print(open(f"/proc/{child._process.pid}/environ").read())
child.close()
"""
    code, output = run(script, AGSPEED_JOB_KEY=SECRET, AGSPEED_DEBUG="trace")
    assert code == 0, output
    assert SECRET not in output and "AGSPEED_DEBUG" in output

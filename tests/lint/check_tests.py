# SPDX-License-Identifier: Apache-2.0
"""Test modules do not import each other, replace only what exists, and every source of `comm` has a test.

Tests share code in modules with other names, so that a change of one test cannot change another one. The test of
`comm/x/y.cpp` is `tests/comm/x/y_test.cpp`, or the table names the test or conformance suite that runs it.

A test that assigns to a name of agspeed's that has moved replaces nothing, and may pass without testing anything.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from tests.lint import sources

CONFORMANCE = "tests/comm/conformance"
# A source without its suffix, or a folder -> the test that runs it.
TESTED_BY = {
    # keep-sorted
    "comm/c10d/": "tests/python/distributed/test_backend.py",
    "comm/channel/association": "tests/comm/channel/channel_test.cpp",
    "comm/channel/connector": "tests/comm/nccl_net/contract_test.cpp",
    "comm/channel/control_line": "tests/comm/channel/channel_test.cpp",
    "comm/channel/domain": "tests/comm/nccl_net/contract_test.cpp",
    "comm/channel/hello_server": "tests/comm/nccl_net/bad_input_test.cpp",
    "comm/collective/control_mailbox": "tests/comm/collective/failure_test.cpp",
    "comm/collective/group": "tests/comm/collective/communicator_test.cpp",
    "comm/collective/host_stats": "tests/comm/collective/collectives_test.cpp",
    "comm/compress/lossless_kernels": "tests/comm/compress/lossless_test.cpp",
    "comm/engine/operation": "tests/comm/engine/engine_test.cpp",
    "comm/horovod/": "tests/python/horovod/test_operations.py",
    "comm/io/file_descriptor": "tests/comm/io/pausable_listener_test.cpp",
    "comm/messaging/endpoint": "tests/comm/messaging/transport_messenger_test.cpp",
    "comm/messaging/loopback_messenger": f"{CONFORMANCE}/loopback_messenger_test.cpp",
    "comm/named/coordinator/agreement": "tests/comm/named/coordinator/coordinator_test.cpp",
    "comm/named/coordinator/entry": "tests/comm/named/coordinator/coordinator_test.cpp",
    "comm/named/coordinator/fusion": "tests/comm/named/coordinator/coordinator_test.cpp",
    "comm/named/message_stream": "tests/comm/named/named_group_test.cpp",
    "comm/named/named_group_state": "tests/comm/world/inspection_test.cpp",
    "comm/named/pending_table": "tests/comm/named/named_group_test.cpp",
    "comm/named/request": "tests/comm/named/request_codec_test.cpp",
    "comm/named/response_runner": "tests/comm/named/named_group_test.cpp",
    "comm/named/stall_inspector": "tests/comm/named/coordinator/coordinator_test.cpp",
    "comm/nccl_net/net": "tests/comm/nccl_net/contract_test.cpp",
    "comm/nccl_net/tables": "tests/comm/nccl_net/agspeed_net_test.cpp",
    "comm/network/network_options": "tests/comm/network/network_messenger_test.cpp",
    "comm/rendezvous/admission": "tests/comm/rendezvous/stream_store_test.cpp",
    "comm/rendezvous/store_address": "tests/comm/rendezvous/stream_store_test.cpp",
    "comm/rendezvous/store_protocol": "tests/comm/rendezvous/stream_store_test.cpp",
    "comm/rendezvous/store_server": "tests/comm/rendezvous/stream_store_test.cpp",
    "comm/schedule/direct": "tests/comm/schedule/catalog_test.cpp",
    "comm/schedule/dissemination": "tests/comm/schedule/catalog_test.cpp",
    "comm/schedule/exchange": "tests/comm/schedule/catalog_test.cpp",
    "comm/schedule/hierarchical": "tests/comm/schedule/catalog_test.cpp",
    "comm/schedule/recursive": "tests/comm/schedule/catalog_test.cpp",
    "comm/schedule/ring": "tests/comm/schedule/catalog_test.cpp",
    "comm/schedule/schedule": "tests/comm/schedule/schedule_builder_test.cpp",
    "comm/schedule/symbols": "tests/comm/schedule/verifier_test.cpp",
    "comm/schedule/tree": "tests/comm/schedule/catalog_test.cpp",
    "comm/security/gcm_ipsec_mb": "tests/comm/security/gcm_test.cpp",
    "comm/security/gcm_openssl": "tests/comm/security/gcm_test.cpp",
    "comm/security/job_key": "tests/comm/security/keys_test.cpp",
    "comm/topology/ip_address": "tests/comm/topology/interface_selector_test.cpp",
    "comm/transport/faulty/faulty_rail": f"{CONFORMANCE}/rails_test.cpp",
    "comm/transport/multirail/route_state": "tests/comm/world/inspection_test.cpp",
    "comm/transport/shm/acceptor": f"{CONFORMANCE}/transports_test.cpp",
    "comm/transport/shm/doorbell": "tests/comm/transport/shm/sender_receiver_test.cpp",
    "comm/transport/shm/local_socket": f"{CONFORMANCE}/transports_test.cpp",
    "comm/transport/shm/receiver": "tests/comm/transport/shm/sender_receiver_test.cpp",
    "comm/transport/shm/sender": "tests/comm/transport/shm/sender_receiver_test.cpp",
    "comm/transport/shm/shared_memory": "tests/comm/transport/shm/sender_receiver_test.cpp",
    "comm/transport/shm/shm_transport": f"{CONFORMANCE}/transports_test.cpp",
    "comm/transport/tcp/acceptor": f"{CONFORMANCE}/rails_test.cpp",
    "comm/transport/tcp/receiver": f"{CONFORMANCE}/rails_test.cpp",
    "comm/transport/tcp/tcp_rail": f"{CONFORMANCE}/rails_test.cpp",
    "comm/transport/transport": f"{CONFORMANCE}/transports_test.cpp",
    "comm/world/counters": "tests/comm/world/world_test.cpp",
    "comm/world/named_groups": "tests/comm/c_api/named_operations_test.cpp",
}


def imported_test_module(name: str) -> str | None:
    """Returns the path of the test module that an imported dotted name is, or is a part of."""
    paths = [f"{module.replace('.', '/')}.py" for module in (name, name.rpartition(".")[0])]
    found = (path for path in paths if PurePosixPath(path).name.startswith(("check_", "test_")))
    return next((path for path in found if path in sources.tracked()), None)


def sources_without_test(paths: list[str]) -> list[str]:
    """Returns one sentence per source of `comm` that has neither its test nor a row, or has both."""
    known, found = set(paths), []
    for path in paths:
        if not path.startswith("comm/") or not path.endswith(".cpp"):
            continue
        stem = path.removesuffix(".cpp")
        has_test = f"tests/{stem}_test.cpp" in known
        has_row = stem in TESTED_BY or f"{PurePosixPath(path).parent}/" in TESTED_BY
        if has_test is has_row:
            found.append(f"{path}: has its test, so it needs no row" if has_test else f"{path}: no test and no row")
    return found


def replaced_names(text: str) -> Iterator[tuple[str, str]]:
    """Yields (dotted name of a module or class of agspeed, attribute) for each attribute that `text` assigns to.

    text: Python, which may hold further programs in its strings.
    """
    imported = {}
    for module, names in re.findall(r"from (agspeed[\w.]*) import ([\w, ]+)", text):
        for name, _, alias in (part.strip().partition(" as ") for part in names.split(",")):
            imported[alias or name] = f"{module}.{name}"
    for name, attribute in re.findall(r"^\s*(\w+)\.(\w+) = ", text, re.MULTILINE):
        if name in imported:
            yield imported[name], attribute


def exists(owner: str, attribute: str) -> bool:
    """Returns True if a module or class has the attribute."""
    module, _, member = owner.rpartition(".")
    try:
        found = importlib.import_module(owner)
    except ModuleNotFoundError:
        found = getattr(importlib.import_module(module), member, None)
    return hasattr(found, attribute)


def test_the_readme_names_every_check() -> None:
    checks = {PurePosixPath(path).name for path in sources.tracked() if path.startswith("tests/lint/check_")}
    assert set(re.findall(r"  - `(check_\w+\.py)`", sources.read("tests/README.md"))) == checks


def test_test_modules_are_not_imported() -> None:
    found = [
        f"{path}:{line}: {module} is a test module: move what tests share to a module of another name"
        for path in sources.python_files()
        for line, name, _ in sources.imports(path)
        if (module := imported_test_module(name))
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_source_of_comm_has_a_test() -> None:
    found = sources_without_test(list(sources.tracked()))
    assert not found, "\n" + "\n".join(found)


def test_tests_replace_only_what_exists() -> None:
    found = [
        f"{path}: replaces {owner}.{attribute}, which does not exist"
        for path in sources.python_files()
        if path.startswith(("tests/", "benchmarks/"))
        for owner, attribute in replaced_names(sources.read(path))
        if not exists(owner, attribute)
    ]
    assert not found, "\n" + "\n".join(found)


def test_rows_name_what_exists() -> None:
    paths = set(sources.tracked())
    folders = {f"{PurePosixPath(path).parent}/" for path in paths}
    rows = {row for row in TESTED_BY if row not in folders and f"{row}.cpp" not in paths}
    gone = rows | (set(TESTED_BY.values()) - paths)
    assert not gone, f"TESTED_BY names what is gone: {sorted(gone)}"


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        ("from tests.python.config.test_whose_file import place", True),
        ("from tests.lint import check_layers", True),
        ("from .test_run import run", True),
        ("import tests.python.launch.test_run", True),
        ("from tests.python.support.small_models import test_model", False),
        ("from tests.lint import sources", False),
    ],
)
def test_an_import_of_a_test_module_is_refused(code: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "parse", lambda path: ast.parse(code))
    imported = [imported_test_module(name) for _, name, _ in sources.imports("tests/python/launch/x.py")]
    assert any(imported) is is_refused


def test_a_source_has_a_test_or_a_row() -> None:
    assert sources_without_test(["comm/wire/x.cpp", "tests/comm/wire/x_test.cpp", "comm/c10d/y.cpp"]) == []
    assert sources_without_test(["comm/wire/x.cpp"]) == ["comm/wire/x.cpp: no test and no row"]


def test_a_name_that_has_moved_is_found() -> None:
    text = "from agspeed.tuning import controller, tuner_config as made\nmade.tuner_config = 1\ncontroller.gone = 2\n"
    found = dict(replaced_names(text))
    assert found == {"agspeed.tuning.tuner_config": "tuner_config", "agspeed.tuning.controller": "gone"}
    assert exists("agspeed.tuning.tuner_config", "tuner_config") and not exists("agspeed.tuning.controller", "gone")

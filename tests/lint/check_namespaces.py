# SPDX-License-Identifier: Apache-2.0
"""The namespaces of comm mirror its folders.

A file of `comm/.../NAME` or `tests/comm/.../NAME` opens only `agspeed::comm::NAME`, and unnamed namespaces. The folders
in `NAMESPACES` differ.
"""

from __future__ import annotations

import re

import pytest

from tests.lint import sources

# Folder below comm -> its namespace. The empty folder is comm itself, whose api.h exports names to frontends.
NAMESPACES = {
    "": "agspeed::comm",
    "nccl_net": "agspeed::comm::nccl",
    "nccl_net/abi": "agspeed::comm::nccl",
}

_OPENED = re.compile(r"\bnamespace\s+([\w:]+)\s*\{")


def namespace_of(path: str) -> str:
    """Returns the namespace of a file of comm or of its tests."""
    folder = path.removeprefix("tests/").removeprefix("comm").rpartition("/")[0].removeprefix("/")
    return NAMESPACES.get(folder, f"agspeed::comm::{folder.rpartition('/')[2]}")


def violations(path: str, text: str) -> list[str]:
    """Returns one sentence per namespace that a file of this path must not open. Vector code may add Highway's."""
    expected = namespace_of(path)
    code = sources.without_hidden_text(text)
    return [
        f"{path}:{code.count(chr(10), 0, match.start()) + 1}: opens {match.group(1)} instead of {expected}"
        for match in _OPENED.finditer(code)
        if match.group(1).removesuffix("::HWY_NAMESPACE") != expected
    ]


def test_namespaces_mirror_the_folders() -> None:
    paths = [path for path in sources.cpp_files() if path.startswith(("comm/", "tests/comm/"))]
    found = [line for path in paths for line in violations(path, sources.read(path))]
    assert not found, "\n" + "\n".join(found)


def test_every_row_of_the_table_is_a_folder() -> None:
    folders = {path.rpartition("/")[0] for path in sources.cpp_files()}
    unused = [row for row in NAMESPACES if f"comm/{row}".rstrip("/") not in folders]
    assert not unused, f"no C++ file in {unused} of comm: remove the rows"


@pytest.mark.parametrize(
    ("path", "opened", "allowed"),
    [
        ("comm/api.h", "agspeed::comm", True),
        ("comm/plan/plan.h", "agspeed::comm::plan", True),
        ("comm/plan/plan.h", "agspeed::comm", False),
        ("comm/plan/plan.h", "agspeed::comm::engine", False),
        ("comm/reduce/reduce.cpp", "agspeed::comm::reduce::HWY_NAMESPACE", True),
        ("comm/transport/tcp/socket.h", "agspeed::comm::tcp", True),
        ("comm/transport/tcp/socket.h", "agspeed::comm::transport", False),
        ("comm/nccl_net/net.h", "agspeed::comm::nccl", True),
        ("tests/comm/plan/plan_test.cpp", "agspeed::comm::plan", True),
        ("tests/comm/plan/plan_test.cpp", "agspeed::comm", False),
    ],
)
def test_a_namespace_is_judged_by_the_folder(path: str, opened: str, allowed: bool) -> None:
    text = f"namespace {opened} {{\nnamespace {{\n}}  // namespace\n}}  // namespace {opened}\n"
    assert (violations(path, text) == []) is allowed

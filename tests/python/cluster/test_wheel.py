# SPDX-License-Identifier: Apache-2.0
"""The wheel of `agspeed cluster up`: other files are refused, and hosts that it does not fit are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agspeed.cluster import wheel as wheels
from agspeed.cluster.wheel import Wheel
from agspeed.errors import UserError
from agspeed.launch.check.facts import Facts
from agspeed.launch.check.findings import Seen
from agspeed.version import __version__
from tests.python.support.wheels import write

FACTS = Facts("3.12.1", "2.15.0+cu132", 0.0, 1 << 30, -1, 1 << 30, ())
WHEEL = Wheel("agspeed.whl", b"", ["cp312"], ["2.14", "2.15"], 100 << 20)


def test_a_wheel_says_for_what_it_is(tmp_path: Path) -> None:
    files = {f"agspeed/_native_torch{release}.cpython-312-x86_64-linux-gnu.so": b"12345" for release in (29, 211, 215)}
    found = wheels.of_file(write(tmp_path, "agspeed", __version__, files, "cp312-cp312-linux_x86_64"))
    assert (found.pythons, found.torches) == (["cp312"], ["2.9", "2.11", "2.15"])
    assert found.num_bytes > 15


@pytest.mark.parametrize(("name", "version"), [("agspeed", "99.0"), ("agspeedy", __version__)])
def test_another_wheel_is_refused(tmp_path: Path, name: str, version: str) -> None:
    with pytest.raises(UserError, match=rf"is no wheel of agspeed {__version__}, the version of this host"):
        wheels.of_file(write(tmp_path, name, version, {}))


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"agspeed-{__version__}-py3-none-any.whl"
    with pytest.raises(UserError, match=r"No such file or directory; name a wheel"):
        wheels.of_file(path)
    path.write_text("no archive")
    with pytest.raises(UserError, match=r"is no wheel of agspeed"):
        wheels.of_file(path)


def test_a_checkout_has_no_wheel() -> None:
    with pytest.raises(UserError, match=r"is not installed from a wheel.*make wheel.*--wheel"):
        wheels.of_this_host()


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (FACTS, ""),
        (replace(FACTS, torch=""), ""),
        (replace(FACTS, python="3.13.0"), "host a has Python 3.13.0, and agspeed.whl is for cp312; "),
        (replace(FACTS, torch="2.10.0"), "host a has torch 2.10.0, and agspeed.whl is for torch 2.14, 2.15; "),
        (
            replace(FACTS, room=1 << 20),
            "host a has 1 MiB free where Python's packages are, and agspeed needs 132 MiB; ",
        ),
    ],
    ids=["fits", "without torch", "python", "torch", "room"],
)
def test_a_host_that_the_wheel_does_not_fit_is_named(facts: Facts, sentence: str) -> None:
    found = list(wheels.mismatches(WHEEL, [Seen("a", facts, 0.0)]))
    assert len(found) == bool(sentence) and "".join(found).startswith(sentence)

# SPDX-License-Identifier: Apache-2.0
"""Files appear whole, are private, and never change a file that another user has put in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agspeed import files


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file that the code must not change."""
    path = tmp_path / "own"
    path.write_text("precious")
    return path


def test_a_file_is_replaced_whole_and_privately(tmp_path: Path) -> None:
    path = tmp_path / "report"
    files.write(path, "first, which is longer")
    files.write(path, b"second")
    assert path.read_text() == "second" and os.listdir(tmp_path) == ["report"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_its_place_is_not_followed(plant, own: Path, tmp_path: Path) -> None:
    for name in ("written", "created"):
        plant(tmp_path / name, own)
    files.write(tmp_path / "written", "new")
    with files.create(tmp_path / "created") as file:
        file.write("new")
    assert own.read_text() == "precious"
    for name in ("written", "created"):
        assert (tmp_path / name).read_text() == "new" and not (tmp_path / name).is_symlink()


def test_a_file_of_this_user_gets_longer_and_a_link_is_not_followed(own: Path, tmp_path: Path) -> None:
    for text in ("one", "two"):
        with files.append(tmp_path / "log") as file:
            file.write(text)
    assert (tmp_path / "log").read_text() == "onetwo"
    (tmp_path / "link").symlink_to(own)
    with files.append(tmp_path / "link") as file:
        file.write("new")
    (tmp_path / "name").hardlink_to(own)
    with pytest.raises(PermissionError):
        files.append(tmp_path / "name")
    assert own.read_text() == "precious" and (tmp_path / "link").read_text() == "new"


def test_what_is_no_regular_file_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to(os.devnull)
    for name in ("folder", "device"):
        with pytest.raises(FileExistsError, match="not a regular file"):
            files.write(tmp_path / name, "new")
        with pytest.raises(FileExistsError, match="not a regular file"):
            files.create(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["device", "folder"]


def test_a_failure_leaves_the_old_file_and_nothing_else(own: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), files.replacing(own) as file:
        file.write(b"half of it")
        raise ZeroDivisionError
    assert own.read_text() == "precious" and os.listdir(tmp_path) == ["own"]
    with pytest.raises(FileNotFoundError):
        files.write(tmp_path / "missing" / "file", "new")


def test_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]

# SPDX-License-Identifier: Apache-2.0
"""Which agspeed.toml counts, and what it may set. Files that another user wrote do not count. No file that came with a
program may choose files, keys or protection. Also: the folders of a user without a home."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import agspeed
from agspeed import config
from agspeed.config import SETTINGS, paths
from agspeed.errors import UserError
from tests.python.support.settings_values import as_toml, ids, valid

STRANGER = 12345


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def resolve(project: Path) -> config.Settings:
    return config.resolve(environ={"HOME": str(project.parent / "home")}, cwd=project)


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's file")
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def is_ignored(project: Path, reason: str) -> None:
    """Asserts that the file does not count, that one sentence says why, and that nothing raises."""
    settings = resolve(project)
    assert settings.mode == "auto"
    (sentence,) = settings.warnings
    assert sentence.startswith(f"{project / config.FILE_NAME} is ignored because {reason}") and "\n" not in sentence


def test_a_file_of_ones_own_counts(project: Path) -> None:
    (project / config.FILE_NAME).write_text("mode = 'off'")
    assert (resolve(project).mode, resolve(project).warnings) == ("off", ())


def test_another_users_file_is_ignored(project: Path) -> None:
    file = project / config.FILE_NAME
    file.write_text("mode = 'off'")
    give_away(file)
    is_ignored(project, f"it belongs to user {STRANGER}")


def test_a_file_in_another_users_folder_is_ignored(project: Path) -> None:
    (project / config.FILE_NAME).write_text("mode = 'off'")
    give_away(project)
    is_ignored(project, f"{project} belongs to user {STRANGER}")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_file_in_a_folder_that_others_may_write_to_is_ignored(project: Path, mode: int) -> None:
    (project / config.FILE_NAME).write_text("mode = 'off'")
    project.chmod(mode)
    is_ignored(project, f"other users may write to {project}")


@pytest.mark.parametrize("place", ["file", "folder"])
def test_what_a_group_with_other_members_may_write_is_ignored(project: Path, place: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to any group")
    file = project / config.FILE_NAME
    file.write_text("mode = 'off'")
    path = file if place == "file" else project
    os.chown(path, -1, STRANGER)
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWGRP)
    is_ignored(project, f"other users may write to {'it' if place == 'file' else project}")


def test_what_the_users_own_group_may_write_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems make a group for each user, with write access to the user's files."""
    file = project / config.FILE_NAME
    file.write_text("mode = 'off'")
    file.chmod(0o664)
    monkeypatch.setattr(paths, "_is_private", lambda group: group == file.stat().st_gid)
    assert resolve(project).mode == "off"


def test_a_file_that_other_users_may_write_is_ignored(project: Path) -> None:
    file = project / config.FILE_NAME
    file.write_text("mode = 'off'")
    file.chmod(0o666)
    is_ignored(project, "other users may write to it")


def test_a_link_to_an_unrelated_file_in_a_folder_that_all_may_write_to_makes_nothing_raise(project: Path) -> None:
    unrelated = project.parent / "pyproject.toml"
    unrelated.write_text("[project]\nname = 'x'\n")
    (project / config.FILE_NAME).symlink_to(unrelated)
    project.chmod(0o1777)
    is_ignored(project, "other users may write to")
    with pytest.raises(UserError, match="Unknown key 'project'"):
        project.chmod(0o755)
        resolve(project)


def test_a_link_counts_as_what_it_leads_to(project: Path) -> None:
    target = project.parent / "elsewhere" / "mine.toml"
    target.parent.mkdir()
    target.write_text("mode = 'off'")
    (project / config.FILE_NAME).symlink_to(target)
    assert resolve(project).mode == "off"
    target.parent.chmod(0o777)
    is_ignored(project, f"other users may write to {target.parent}")


def test_another_users_link_is_ignored(project: Path) -> None:
    target = project.parent / "mine.toml"
    target.write_text("mode = 'off'")
    (project / config.FILE_NAME).symlink_to(target)
    give_away(project / config.FILE_NAME)
    is_ignored(project, f"it belongs to user {STRANGER}")


def test_roots_file_counts_for_all_users(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make root's files")
    (project / config.FILE_NAME).write_text("mode = 'off'")
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert resolve(project).mode == "off"


def test_above_a_file_that_is_ignored_one_that_counts_is_found(project: Path) -> None:
    inner = project / "inner"
    inner.mkdir()
    (project / config.FILE_NAME).write_text("mode = 'off'")
    (inner / config.FILE_NAME).write_text("mode = 'max'")
    (inner / config.FILE_NAME).chmod(0o666)
    settings = config.resolve(environ={"HOME": str(project.parent / "home")}, cwd=inner)
    assert settings.mode == "off" and len(settings.warnings) == 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link", "circle"])
def test_what_is_no_file_is_passed_over(project: Path, kind: str) -> None:
    path = project / config.FILE_NAME
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere" if kind == "dangling link" else config.FILE_NAME)
    assert (resolve(project).mode, resolve(project).warnings) == ("auto", ())


def test_strict_makes_no_error_of_a_file_that_is_ignored(project: Path) -> None:
    file = project / config.FILE_NAME
    file.write_text("mode = 'off'")
    file.chmod(0o666)
    assert config.resolve({"strict": True}, environ={"HOME": "/nowhere"}, cwd=project).mode == "auto"


def test_the_users_own_file_is_looked_at_as_well(project: Path) -> None:
    own = project.parent / "home" / ".config" / "agspeed"
    own.mkdir(parents=True)
    (own / config.FILE_NAME).write_text("mode = 'off'")
    assert resolve(project).mode == "off"
    (own / config.FILE_NAME).chmod(0o666)
    assert resolve(project).mode == "auto" and len(resolve(project).warnings) == 1


# --- what a file may set ----------------------------------------------------------------------------------------------


def test_what_is_written_loaded_or_protects_is_the_users_own_choice() -> None:
    own = {setting.name for setting in SETTINGS if setting.own_file}
    assert own == {"cache_dir", "comm_mode", "dump", "flight_record_dir", "job_key_file", "perf_map", "report"}


@pytest.mark.parametrize("setting", ids([setting for setting in SETTINGS if setting.own_file]))
def test_only_the_users_own_file_sets_it(project: Path, setting: config.Setting) -> None:
    text = f"{setting.toml_key} = {as_toml(valid(setting)[0])}\n"
    near, own = project / config.FILE_NAME, project.parent / "home" / ".config" / "agspeed" / config.FILE_NAME
    near.write_text(text)
    with pytest.raises(UserError) as raised:
        resolve(project)
    assert str(raised.value).startswith(f"{setting.name} ({near}:1) may not be set by a file in the working directory")
    assert setting.env in str(raised.value) and str(own) in str(raised.value)
    near.unlink()
    own.parent.mkdir(parents=True)
    own.write_text(text)
    assert str(resolve(project).origins[setting.name]) == f"{own}:1"


# --- without a home ---------------------------------------------------------------------------------------------------


def test_without_a_home_the_cache_is_among_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for environ in ({}, {"HOME": ""}, {"HOME": "relative"}, {"TMPDIR": "relative"}):
        settings = config.resolve(environ=environ, cwd="/")
        assert settings.cache_dir == Path(f"/tmp/agspeed-{os.geteuid()}")
    assert config.resolve(environ={"TMPDIR": "/t"}, cwd="/").cache_dir == Path(f"/t/agspeed-{os.geteuid()}")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    with tempfile.TemporaryDirectory(prefix="agspeed-open-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_user_whom_the_system_does_not_know_gets_no_folder_named_like_a_home(open_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    script = f"""
import grp, os, pwd, sys  # and all else while the files of this user can be read
from agspeed import config
from agspeed.cli.main import main
os.setgroups([])
os.setgid({STRANGER})
os.setuid({STRANGER})
folder = config.resolve().cache_dir
folder.mkdir(mode=0o700)
print(folder)
sys.exit(main(["cache", "ls"]))
"""
    environment = {name: text for name, text in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    places = {"TMPDIR": str(open_folder), "XDG_CONFIG_HOME": "~", "PYTHONPATH": str(Path(agspeed.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment | places, cwd=open_folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(open_folder / f"agspeed-{STRANGER}")
    assert [path.name for path in open_folder.iterdir()] == [f"agspeed-{STRANGER}"]

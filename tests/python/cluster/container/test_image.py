# SPDX-License-Identifier: Apache-2.0
"""The image of the container recipe: what is in it, and logins between its containers."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agspeed.cli import main
from agspeed.version import __version__
from tests.python.support import image as images
from tests.python.support.image import Image

pytestmark = [
    pytest.mark.container,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(images.why_none() is not None, reason=images.why_none() or "-"),
]
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60")
_REMOTE = "127.0.0.2"
"""A host that agspeed takes for another one. It is this machine, as containers use its network."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with io.StringIO() as printed:
        with contextlib.redirect_stdout(printed):
            assert main(["cluster", "render", "container"]) == 0
        recipe = printed.getvalue()
    with images.built(tmp_path_factory.mktemp("image"), recipe) as found:
        yield found


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key of a job, as the compose file's comment makes it: its owner is the user of the image."""
    return a_key(tmp_path_factory.mktemp("key"))


def a_key(folder: Path) -> Path:
    file = folder / "agspeed_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True, timeout=60)
    os.chown(file, 1000, 1000)
    return file


@pytest.fixture
def port(image: Image, key: Path) -> Iterator[str]:
    """The port of an sshd in a container."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = str(free.getsockname()[1])
    server = subprocess.Popen(
        image.command("agspeed-sshd", key=key, SSH_PORT=number),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        said = next((line for line in server.stdout if "Server listening on 0.0.0.0" in line), None)
        assert said is not None, f"sshd has ended with status {server.wait()}"
        yield number
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def test_programs_run_as_an_ordinary_user(image: Image) -> None:
    said = image.said("sh", "-c", "id -u && pwd && grep CapEff /proc/self/status && agspeed --version").split("\n")
    assert said == ["1000", "/var/lib/agspeed", "CapEff:\t0000000000000000", f"agspeed {__version__}"]


def test_the_image_holds_nothing_of_its_build_and_no_keys(image: Image) -> None:
    found = image.said("sh", "-c", "ls -A /tmp /var/lib/apt/lists /var/lib/agspeed/.ssh; ls /etc/ssh")
    assert "dist" not in found and "debian" not in found and "ssh_host" not in found and "id_" not in found, found


def test_code_for_python_can_be_compiled(image: Image) -> None:
    """torch.compile does so at run time."""
    compile_it = "echo '#include <Python.h>' | g++ -x c++ -fsyntax-only $(python3-config --includes) -"
    assert image.said("sh", "-c", compile_it) == ""


def test_the_image_prints_its_own_recipe(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "render", "container"]) == 0
    assert image.said("agspeed", "cluster", "render", "container") == capsys.readouterr().out.strip()


def test_a_container_logs_in_to_another_one(image: Image, key: Path, port: str) -> None:
    assert image.said(*_SSH, "-p", port, "127.0.0.1", "id -u", key=key) == "1000"


def test_the_key_of_another_job_is_refused(image: Image, tmp_path: Path, port: str) -> None:
    done = image.run(*_SSH, "-p", port, "127.0.0.1", "id -u", key=a_key(tmp_path))
    assert done.returncode == 255 and done.stdout == "" and "Host key verification failed" in done.stderr, done


def test_a_launcher_starts_ranks_in_another_container(image: Image, key: Path, port: str) -> None:
    launch = ("agspeed", "run", "-np", "2", "-H", f"{_REMOTE}:2", "--ssh-port", port)
    said = image.said(*launch, "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"', key=key)
    assert {line.partition(">:")[2] for line in said.split("\n")} == {"rank 0 of 2", "rank 1 of 2"}, said

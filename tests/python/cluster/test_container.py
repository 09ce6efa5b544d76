# SPDX-License-Identifier: Apache-2.0
"""The programs for ssh that the container recipe writes. They run here, outside of a container and without sshd."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agspeed.cli import main

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen: run make setup-cluster")


class Image:
    """The programs of the recipe in a folder, and a home."""

    def __init__(self, folder: Path, recipe: str) -> None:
        self.programs, self.home = folder / "programs", folder / "home"
        for each in (self.programs, self.home, self.home / ".ssh"):
            each.mkdir()
        writes = re.search(r"^RUN (printf .*?)\n\n", recipe, re.M | re.S)
        assert writes is not None
        script = writes[1].replace("/usr/local/bin", str(self.programs))
        subprocess.run(["/bin/sh", "-ec", script], check=True, timeout=60)

    def run(self, program: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "PATH": f"{self.programs}:/usr/bin:/bin"}
        return subprocess.run(
            [self.programs / program], env=environment, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture
def image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Image:
    assert main(["cluster", "render", "container"]) == 0
    return Image(tmp_path, capsys.readouterr().out)


def test_hosts_may_have_the_key_of_the_job_alone(image: Image) -> None:
    key = image.home / ".ssh" / "id_rsa"
    make = ["ssh-keygen", "-q", "-t", "ecdsa", "-m", "PEM", "-N", "", "-f", str(key)]  # as mpi-operator's
    subprocess.run(make, check=True, timeout=60)
    key.chmod(0o644)
    done = image.run("agspeed-known-hosts")
    public = key.with_suffix(".pub").read_text().split()[:2]
    assert done.returncode == 0 and done.stdout.split()[:3] == ["*", *public], done
    assert (image.home / ".agspeed-ssh" / "key").stat().st_mode & 0o777 == 0o600


def test_a_missing_key_is_named(image: Image) -> None:
    done = image.run("agspeed-sshd")
    assert done.returncode == 1
    assert done.stderr == f"agspeed: there is no ssh key in {image.home}/.ssh: mount id_rsa or id_ed25519 there\n"


def test_programs_are_sh(image: Image) -> None:
    for program in image.programs.iterdir():
        assert program.stat().st_mode & 0o777 == 0o755
        subprocess.run(["/bin/sh", "-n", program], check=True, timeout=60)

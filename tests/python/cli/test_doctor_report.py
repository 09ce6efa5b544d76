# SPDX-License-Identifier: Apache-2.0
"""agspeed doctor --report: the file has what a bug report needs, and identifies neither the user nor the machine."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

import pytest

from agspeed import config
from agspeed.cli import checks, gpu_checks, net_checks
from agspeed.cli.bug_report import facts
from agspeed.cli.bug_report.redaction import Redactor, of_this_machine

SECTIONS = [
    "Versions",
    "Machine",
    "GPUs",
    "Compilers",
    "Parts of torch",
    "Settings",
    "Network interfaces",
    "Cache folder",
    "Findings of the doctor",
]
INTERFACES = [
    {"name": "eth0", "address": "10.20.30.40", "prefix_bits": 24, "is_up": True, "is_selected": True, "reason": "real"},
    {
        "name": "eth1",
        "address": "10.20.30.41",
        "prefix_bits": 24,
        "is_up": True,
        "is_selected": False,
        "reason": "its address 10.20.30.40 is used",
    },
    {
        "name": "eth0",
        "address": "2a01:db8::5",
        "prefix_bits": 64,
        "is_up": True,
        "is_selected": False,
        "reason": "other",
    },
]


@pytest.fixture
def found(monkeypatch):
    """The findings of the child process, for tests to change."""
    answer = {
        "torch": "2.11.0+cpu",
        "torch_flavour": "the CPU",
        "torch_parts": {"dynamo": "", "inductor": "torch 2.11.0 has no config; inductor is lost"},
        "threads": 1,
        "cuda": False,
        "native": {"torch": "2.11.0+cpu", "llvm": "22.1.8"},
        "network": {"variable": "", "selector": "", "interfaces": INTERFACES},
    }
    for module in (checks, facts, gpu_checks, net_checks):
        monkeypatch.setattr(module, "probe", lambda: answer)
    monkeypatch.setattr(checks, "extensions", lambda: {(2, 11): Path("_native_torch211.so")})
    return answer


def sections(text: str) -> dict[str, str]:
    """Returns {title: content} of a report."""
    return dict(re.findall(r"^## ([^\n]*)\n\n```text\n(.*?)\n```$", text, re.M | re.S))


def test_the_file_has_what_a_bug_report_needs(found, agspeed, tmp_path):
    path = tmp_path / "report.md"
    result = agspeed("doctor", "--report", path)
    assert "✓ torch" in result.out and f"{path} is written. Read it" in result.out
    text = path.read_text()
    content = sections(text)
    assert list(content) == SECTIONS and text.startswith("# agspeed: facts for a bug report\n")
    assert "2.11.0+cpu, built for the CPU" in content["Versions"] and "llvm 22.1.8" in content["Versions"]
    assert "bits (" in content["Machine"] and " free of " in content["Machine"]
    assert re.search(r"^dynamo +fits$", content["Parts of torch"], re.M) and "inductor is lost" in text
    assert all(f"\n{setting.name} " in f"\n{content['Settings']}" for setting in config.SETTINGS)
    assert re.search(r"^space .* free of ", content["Cache folder"], re.M)
    assert re.search(r"^warn  parts of torch .*\n      fix: pip install", content["Findings of the doctor"], re.M)


def test_the_file_belongs_to_its_user_alone(found, agspeed, tmp_path):
    agspeed("doctor", "--report", tmp_path / "report.md")
    assert stat.S_IMODE((tmp_path / "report.md").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["report.md"]


def test_a_dash_prints_the_text_alone(found, agspeed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = agspeed("doctor", "--report", "-")
    assert list(sections(result.out)) == SECTIONS and result.out.endswith("```\n") and "✓" not in result.out
    assert os.listdir(tmp_path) == []


def test_the_exit_code_is_that_of_the_doctor(found, agspeed):
    assert agspeed("doctor", "--report", "-").code == 0
    del found["torch"]
    found["torch_error"] = "ImportError: no"
    assert agspeed("doctor", "--report", "-").code == 1


# --- what must not be in it -------------------------------------------------------------------------------------------

PLANTED = {
    "AGSPEED_JOB_KEY": "correct horse battery staple",
    "CXX": "g++ -DPASSWORD=swordfish",
    "DATABASE": "postgres://admin:hunter22@db.corp.example/prod",
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOp",
    "LICENCE": "line one of a key\nline two of a key",
    "PROJECT": "unannounced-product",
    "SSH_CONNECTION": "192.0.2.7 50000 192.0.2.8 22",
    "USER": "alice",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
}
"""Variables of a user's environment."""
PRIVATE = [
    *("correct horse", "swordfish", "PASSWORD", "admin", "hunter22", "corp.example", "hf_", "line one", "line two"),
    *("unannounced", "192.0.2", "alice", "Alice", "0123456789abcdef", "gpu17", "secret project"),
    *("10.20.30", "2a01:db8"),
]


def test_names_paths_addresses_and_secrets_are_absent(found, agspeed, tmp_path, monkeypatch):
    home = tmp_path / "Alice Smith"
    home.mkdir()
    for name, value in {**PLANTED, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": f"/a:{home}"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AGSPEED_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGSPEED_REPORT", str(home / "secret project" / "report.html"))
    monkeypatch.setenv("AGSPEED_SOCKET_IFNAME", "10.20.30.0/24")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu17.corp.example")
    found["torch_parts"]["dynamo"] = (
        f"{home}/secret project/venv/lib/python3.12/site-packages/torch/x.so: gpu18.corp.example, alice, "
        f"{PLANTED['HF_TOKEN']}, key={PLANTED['WANDB_API_KEY']}, {PLANTED['LICENCE']}, {PLANTED['DATABASE']}, "
        f"{PLANTED['AGSPEED_JOB_KEY']} in {PLANTED['PROJECT']} from {PLANTED['SSH_CONNECTION']}"
    )
    text = agspeed("doctor", "--net", "--report", "-").out
    content = sections(text)
    assert list(content) == SECTIONS
    assert not [word for word in PRIVATE if word in text]
    assert re.search(r"^job_key +set \(environment variable AGSPEED_JOB_KEY\)$", content["Settings"], re.M)
    assert re.search(r"^socket_interfaces +\[address\]/24 ", content["Settings"], re.M)
    assert re.search(r"^cache_dir +\[path\]/.cache/agspeed \(default\)$", content["Settings"], re.M)
    assert re.search(r"^dynamo +\[path\]", content["Parts of torch"], re.M)


def test_no_value_of_the_environment_is_in_it_unless_it_is_public(found, agspeed):
    text = agspeed("doctor", "--report", "-").out
    values = {value for value in os.environ.values() if len(value) >= 8 and not value.startswith(("/usr", "/bin"))}
    assert {value for value in values if value in text} <= {value for value in values if value in str(facts.public())}


def test_interfaces_are_told_apart_by_the_numbers_of_their_networks(found, agspeed):
    lines = sections(agspeed("doctor", "--report", "-").out)["Network interfaces"].splitlines()
    assert [re.findall(r"IPv\d, network \d", line) for line in lines] == [
        ["IPv4, network 1"],
        ["IPv4, network 1"],
        ["IPv6, network 2"],
    ]
    assert lines[1].endswith("left out, its address [address] is used")


def test_a_fence_in_a_value_does_not_end_its_section(found, agspeed):
    found["torch_parts"]["dynamo"] = "a\n```\n# b"
    assert "a ''' # b" in sections(agspeed("doctor", "--report", "-").out)["Parts of torch"]


def test_an_error_in_one_section_leaves_the_others(found, agspeed, monkeypatch):
    monkeypatch.setattr(facts.shutil, "disk_usage", lambda path: 1 / 0)
    monkeypatch.setattr(facts.checks, "cache", lambda: iter(()))
    content = "\n".join(f"{name} {value}" for name, value in facts.rows(facts.cache_folder))
    assert "folder " in content and "not all facts ZeroDivisionError" in content


REDACTOR = Redactor(
    users=["alice"],
    hosts=["gpu17.corp.example", "localhost"],
    places=["/a", "/srv/alice smith", "/usr/bin", "/"],
    values=["tree house", "2.11.0+cpu"],
    public=["torch 2.11.0+cpu", "driver 570.86.15.1"],
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/usr/bin/g++ and /proc/meminfo, /tmp, /", "/usr/bin/g++ and /proc/meminfo, /tmp, /"),
        ("/data/x.so: undefined symbol", "[path]: undefined symbol"),
        ("in /srv/alice smith/x y", "in [path] y"),
        ("(/srv/a/site-packages/torch/lib/a.so)", "([path]/site-packages/torch/lib/a.so)"),
        ("/srv/x/.cache/agspeed/kernels", "[path]/.cache/agspeed/kernels"),
        ("/srv/agspeed.toml:3", "[path]/agspeed.toml:3"),
        ("~/project/x and ~bob/x", "[path] and [path]"),
        ("LIBRARY=/srv/a:/srv/alice smith/b", "LIBRARY=[path]:[path]"),
        ("g++ -I/srv/include -I/srv/alice smith", "g++ -I[path] -I[path]"),
        ("at:/srv/alice smith/a/b.", "at:[path]."),
        ("chmod 600 $PWD/job.key, and/or 1/2", "chmod 600 $PWD/job.key, and/or 1/2"),
        ("see https://corp.example/x, then", "see [url], then"),
        ("tcp://10.1.2.3:80", "[url]"),
        ("10.1.2.3:29500, 10.1.2.0/24 and 127.0.0.1", "[address]:29500, [address]/24 and 127.0.0.1"),
        ("fe80::1%eth0 and fd00::/8: silent, ::1", "[address] and [address]/8: silent, ::1"),
        ("link/ether 02:42:ac:11:00:02 enx0242ac110002", "link/ether [address] enx[address]"),
        ("at 12:30:45 std::string c10::Error 2.15.0", "at 12:30:45 std::string c10::Error 2.15.0"),
        ("570.86.15.1 is not an address", "570.86.15.1 is not an address"),
        ("torch 2.11.0+cpu in a tree house", "torch 2.11.0+cpu in a ***"),
        ("GPU17 and gpu18.corp.example, not gpu170 on localhost", "[host] and [host], not gpu170 on localhost"),
        ("alice's, not malice", "[user]'s, not malice"),
        ("--hf-token abc sk-0123456789abc", "--hf-token *** ***"),
        ("a\x1b[31m\u202e\n\tb", "a\\x1b[31m\\u202e b"),
        ("", ""),
    ],
)
def test_a_text_is_redacted(text, expected):
    assert REDACTOR.apply(text) == expected


def test_redaction_changes_nothing_twice():
    text = REDACTOR.apply("/data/x from 10.1.2.3 by alice at gpu17 with a tree house")
    assert REDACTOR.apply(text) == text == "[path] from [address] by [user] at [host] with a ***"


def test_a_user_without_a_name_has_a_report(monkeypatch):
    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert of_this_machine([]).apply("torch fits") == "torch fits"


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_a_link_in_its_place_is_not_followed(found, agspeed, tmp_path):
    own = tmp_path / "own"
    own.write_text("precious")
    (tmp_path / "report.md").symlink_to(own)
    assert agspeed("doctor", "--report", tmp_path / "report.md").code == 0
    assert own.read_text() == "precious" and not (tmp_path / "report.md").is_symlink()


@pytest.mark.parametrize("path", ["missing/report.md", ".", "pipe", "/proc/report.md", ""])
def test_a_path_that_cannot_be_written_is_one_sentence(found, agspeed, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    result = agspeed("doctor", "--report", path)
    assert result.code == 2 and result.err.count("\n") == 1
    assert result.err.startswith(f"agspeed: The report cannot be written to {path!r}: ")
    assert "Name a file in a folder that exists" in result.err and "is written" not in result.out
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("options", [["--json"], ["--listen"], ["--peer", "node1"]])
def test_a_report_describes_one_host(agspeed, tmp_path, options):
    result = agspeed("doctor", "--report", tmp_path / "report.md", *options)
    assert result.code == 2 and result.err.startswith("agspeed: --report ") and os.listdir(tmp_path) == []


def test_ranks_on_several_hosts_write_no_report(agspeed, tmp_path, monkeypatch):
    group = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    for name, value in group.items():
        monkeypatch.setenv(name, value)
    result = agspeed("doctor", "--net", "--report", tmp_path / "report.md")
    assert result.code == 2 and "start no ranks" in result.err and os.listdir(tmp_path) == []

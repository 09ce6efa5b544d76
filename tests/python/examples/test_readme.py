# SPDX-License-Identifier: Apache-2.0
"""Every command and every line of Python that README.md offers for copying runs as it stands.

The tables below name commands that cannot run here, with the reason, and the closest form that runs instead. A new
command in README.md runs as it stands, unless a table says otherwise. A table row that README.md no longer contains is
an error.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.cli.main import _parser
from agspeed.frontend.live_sessions import live_sessions
from agspeed.reporting import model
from tests.python.reporting import report_sample

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
_IS_COMMAND = re.compile(r"(agspeed [a-z]|make [a-z]|pip |python |torchrun -)")

PARSED = {
    "agspeed doctor --listen": "waits for another host; test_net_peers.py has both sides",
    "agspeed doctor --net": "wants ranks of torchrun on several hosts",
    "agspeed doctor --peer node1,node2,node3": "wants three hosts of those names",
    "agspeed run -np 4 --as-horovod python train.py": "wants the reader's script; horovod/test_scripts.py has one",
}
"""Command -> why only its arguments are parsed."""

_BENCH = (
    "torchrun --nnodes 4 --nproc-per-node 1 --node-rank N --master-addr node0 --master-port 29500 "
    "-m agspeed comm bench --against gloo"
)
_DDP = "torchrun --nnodes 4 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29400 python/examples/ddp.py"
_TIMED = "python benchmarks/run.py run --case time_to_speed/bert"
_WHEEL = "pip install agspeed-0.1.0-*.whl"
_VERSION = "$(python -c 'import agspeed; print(agspeed.__version__)')"

INSTEAD = {
    _BENCH: (
        "wants four hosts: two ranks of this one, and a single size",
        _BENCH.replace("nnodes 4 --nproc-per-node 1", "nnodes 1 --nproc-per-node 2")
        .replace("rank N", "rank 0")
        .replace("node0 --master-port 29500", "127.0.0.1 --master-port FREE_PORT")
        + " --sizes 4K --seconds 0.01",
    ),
    _DDP: (
        "wants four hosts: two ranks of this one",
        _DDP.replace("nnodes 4", "nnodes 1").replace("HOST0:29400", "localhost:0"),
    ),
    _TIMED: ("measures for minutes", "python benchmarks/run.py list | grep -F time_to_speed/bert"),
    _WHEEL: (
        "building the wheel takes long; `make wheel-check` does it, and installs it",
        f"case agspeed-{_VERSION}-cp312-cp312-linux_x86_64.whl in {_WHEEL.split()[-1]}) ;; *) exit 1 ;; esac",
    ),
    "python -m benchmarks.gpu_check --out DIR": (
        "wants a GPU, and exits with 3 elsewhere",
        "python -m benchmarks.gpu_check --out DIR --dry-run",
    ),
    "agspeed netbed": ("wants a layout and root", "agspeed netbed --help"),
    "make build": ("compiles for long", "make --dry-run build"),
    "make demo": ("takes minutes; test_demo.py plays its acts", "make --dry-run demo"),
    "make test": ("runs this very test", "make --dry-run test"),
    "make test-fast": ("runs this very test", "make --dry-run test-fast"),
}
"""Command -> (why it does not run as it stands, the command that runs instead)."""

_FOUND_PROBLEMS = {"agspeed doctor": 1}
"""Exit codes that depend on this machine, not on the command."""


def fences() -> list[str]:
    """Returns the fenced blocks."""
    return _FENCE.findall(README)


def spans() -> list[str]:
    """Returns the code spans outside of fenced blocks, with a table's escaped bars unescaped."""
    found = re.findall(r"`([^`\n]+)`", _FENCE.sub("", README))
    return list(dict.fromkeys(span.replace("\\|", "|") for span in found))


def commands() -> list[str]:
    """Returns the commands that a reader would type: lines of blocks without comments, and spans."""
    lines = [re.split(r"\s{2,}#", line)[0].strip() for block in fences() for line in block.splitlines()]
    found = [text for text in (*lines, *spans()) if _IS_COMMAND.match(text)]
    return [one for text in dict.fromkeys(found) for one in _alternatives(text)]


def _alternatives(command: str) -> list[str]:
    """Splits `agspeed report show|html` into two commands, each with the files that it takes."""
    stem, _, last = command.rpartition(" ")
    if "|" not in last or "(" in command:
        return [command]
    files = {"show": " report.json", "html": " report.json", "compare": " report.json report.json"}
    return [f"{stem} {word}{files.get(word, '')}" for word in last.split("|")]


def shell(line: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line in `folder` with this interpreter's programs and the checkout's package."""
    programs = home / "bin"
    programs.mkdir()
    (programs / "agspeed").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agspeed "$@"\n')
    (programs / "agspeed").chmod(0o755)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "python" / "examples")]),
        "AGSPEED_CACHE_DIR": str(home / "cache"),
        "AGSPEED_BACKENDS": "native",
    }
    line = line.replace("FREE_PORT", str(_free_port()))
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _needs_the_checkout(line: str) -> bool:
    return line.startswith("make ") or "benchmarks" in line or "python/examples" in line


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_a_command_runs_as_it_stands_or_in_its_nearest_form(command: str, tmp_path: Path) -> None:
    if command in PARSED:
        _parser().parse_args(command.split()[1:])
        return
    _, line = INSTEAD.get(command, ("", command))
    folder = ROOT if _needs_the_checkout(line) else tmp_path
    model.Report(report_sample.report()).save(tmp_path / "report.json")
    done = shell(line, folder, tmp_path)
    allowed = {0, _FOUND_PROBLEMS.get(command, 0)}
    assert done.returncode in allowed, f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert "Traceback" not in done.stderr, done.stderr[-3000:]


def test_the_key_of_a_job_is_made_as_the_readme_says(tmp_path: Path) -> None:
    (block,) = [block for block in fences() if "job.key" in block]
    lines = [line for line in block.splitlines() if not line.startswith("torchrun")]
    done = shell("\n".join([*lines, "printenv AGSPEED_JOB_KEY_FILE"]), tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    key = Path(done.stdout.strip())
    assert key == tmp_path / "job.key" and re.fullmatch(r"[0-9a-f]{64}\n", key.read_text())
    assert key.stat().st_mode & 0o777 == 0o600


def test_rows_about_commands_that_the_readme_lacks_are_gone() -> None:
    gone = {*PARSED, *INSTEAD, *_FOUND_PROBLEMS} - set(commands())
    assert not gone, f"README.md no longer has {sorted(gone)}"
    assert len(commands()) >= 15, commands()


# --- lines of Python --------------------------------------------------------------------------------------------------

_COMPLETED = {
    "with agspeed.paused():": "\n    pass",
    "@agspeed.optimize": "\ndef step(): ...",
}
"""Beginning of a statement -> the text that completes it."""
_OTHER_PROCESS = 'torch.distributed.init_process_group("agspeed")'
_KEYWORD = re.compile(r'(\w+)=("[^"]+"|True)')


def snippets() -> list[str]:
    """Returns the statements in the diff and in code spans that call agspeed or torch."""
    added = [line[1:].partition("#")[0].strip() for block in fences() for line in block.splitlines() if line[:1] == "+"]
    return [text for text in (*added, *spans()) if _is_statement(text)]


def _is_statement(text: str) -> bool:
    if "agspeed" not in text or not re.search(r"[(@]|^import ", text):
        return False
    try:
        ast.parse(text + _COMPLETED.get(text, ""))
    except SyntaxError:
        return False
    return True


def keywords() -> list[str]:
    """Returns the code spans that are one keyword of optimize."""
    known = agspeed.optimize.__kwdefaults__
    return [span for span in spans() if (found := _KEYWORD.fullmatch(span)) and found[1] in known]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Names for the statements: a model and its optimizer, in a folder with a report. Closes all sessions at the
    end."""
    monkeypatch.chdir(tmp_path)
    model.Report(report_sample.report()).save("report.json")
    network = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    yield {"agspeed": agspeed, "torch": torch, "Net": lambda: network, "model": network, "optimizer": optimizer}
    for session in live_sessions():
        session.close()


@pytest.mark.parametrize("snippet", [text for text in snippets() if text != _OTHER_PROCESS])
def test_a_line_of_python_runs(snippet: str, names: dict[str, Any]) -> None:
    whole = snippet.replace("{...}", '{"mode": "max"}') + _COMPLETED.get(snippet, "")
    exec(compile(whole, "README.md", "exec"), names)


@pytest.mark.parametrize("keyword", keywords())
def test_a_keyword_is_one_of_optimize(keyword: str, names: dict[str, Any]) -> None:
    more = ', mode="deterministic"' if keyword.startswith("plan") else ""
    exec(compile(f"agspeed.optimize(model, {keyword}{more})", "README.md", "exec"), names)


def test_the_backend_of_torch_distributed_is_found_by_its_name(tmp_path: Path) -> None:
    assert _OTHER_PROCESS in snippets()
    group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "FREE_PORT"}
    settings = " ".join(f"{name}={value}" for name, value in group.items())
    program = json.dumps(
        f"import torch, agspeed; {_OTHER_PROCESS}; print(torch.distributed.get_backend())".replace('"', "'")
    )
    done = shell(f"{settings} python -c {program}", tmp_path, tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == "agspeed", done.stderr


def test_the_readme_offers_python_and_keywords() -> None:
    assert "model = agspeed.optimize(model)" in snippets() and len(snippets()) >= 8, snippets()
    assert {'mode="max"', 'numerics="exact"', "strict=True"} <= set(keywords())

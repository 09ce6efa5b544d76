# SPDX-License-Identifier: Apache-2.0
"""Every command and every line of Python that README.md offers for copying runs as it stands.

The tables below name commands that cannot run here, with the reason, and the closest form that runs instead. A new
command in README.md runs as it stands, unless a table says otherwise. A table row that README.md no longer contains is
an error.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.cli.main import _parser
from agspeed.frontend.live_sessions import live_sessions
from agspeed.reporting import model
from tests.python.examples import documents
from tests.python.examples.documents import COMPLETED, README, ROOT, shell
from tests.python.reporting import report_sample

COMMANDS = documents.commands(README)
SNIPPETS = documents.snippets(README)

PARSED = {
    "agspeed doctor --listen": "waits for another host; fault/test_doctor.py has both sides",
    "agspeed doctor --net": "wants ranks of torchrun on several hosts",
    "agspeed doctor --peer node1,node2,node3": "wants three hosts of those names",
    "agspeed run -H node0:2,node1:2 python train.py": "wants hosts of those names; launch/test_sshd.py makes two",
    "agspeed run -np 4 --min-np 2 python train.py": "wants the reader's script; elastic/test_elastic.py has one",
    "agspeed run --optimize python train.py": "wants the wheel; launch/test_optimize_flag.py runs a script",
    "agspeed cluster up hosts.txt": "wants hosts with sshd; cluster/test_up.py makes them",
    "agspeed cluster render mpijob --file job.toml": "wants the reader's file; cluster/test_render.py has one",
    "agspeed run -np 4 --as-horovod python train.py": "wants the reader's script; horovod/test_scripts.py has one",
}
"""Command -> why only its arguments are parsed."""

_BENCH = (
    "torchrun --nnodes 4 --nproc-per-node 1 --node-rank N --master-addr node0 --master-port 29500 "
    "-m agspeed comm bench --against gloo"
)
_DDP = "torchrun --nnodes 4 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29400 python/examples/ddp.py"
_TIMED = "python benchmarks/run.py run --case time_to_speed/bert --threads 2 --settle-seconds 80"
_WHEEL = "pip install dist/agspeed-0.1.0-*.whl"
_WHEELS = 'make wheel TORCH="2.11 2.15"'
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
        f"case dist/agspeed-{_VERSION}-cp312-cp312-linux_x86_64.whl in {_WHEEL.split()[-1]}) ;; *) exit 1 ;; esac",
    ),
    "python -m benchmarks.gpu_check --out DIR": (
        "wants a GPU, and exits with 3 elsewhere",
        "python -m benchmarks.gpu_check --out DIR --dry-run",
    ),
    "agspeed netbed": ("wants a layout and root", "agspeed netbed --help"),
    "make build": ("compiles for long", "make --dry-run build"),
    "make demo": ("takes minutes; test_demo.py plays its acts", "make --dry-run demo"),
    "make docs": ("sets the machine up; tests/python/docs builds the site", "make --dry-run docs"),
    "make test": ("runs this very test", "make --dry-run test"),
    "make test-fast": ("runs this very test", "make --dry-run test-fast"),
    "make wheel": ("compiles for long", "make --dry-run wheel"),
    _WHEELS: ("compiles for long", _WHEELS.replace("make", "make --dry-run")),
}
"""Command -> (why it does not run as it stands, the command that runs instead)."""

_FOUND_PROBLEMS = {"agspeed doctor": 1}
"""Exit codes that depend on this machine, not on the command."""


def _needs_the_checkout(line: str) -> bool:
    return line.startswith("make ") or "benchmarks" in line or "python/examples" in line


@pytest.mark.slow
def test_the_complete_script_trains_and_prints_its_report(tmp_path: Path) -> None:
    [script] = documents.fences(README, "python")
    (tmp_path / "train.py").write_text(script)
    done = shell("python train.py", tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "What was chosen" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
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
    (block,) = [block for block in documents.fences(README) if "job.key" in block]
    lines = [line for line in block.splitlines() if not line.startswith("torchrun")]
    done = shell("\n".join([*lines, "printenv AGSPEED_JOB_KEY_FILE"]), tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    key = Path(done.stdout.strip())
    assert key == tmp_path / "job.key" and re.fullmatch(r"[0-9a-f]{64}\n", key.read_text())
    assert key.stat().st_mode & 0o777 == 0o600


def test_rows_about_commands_that_the_readme_lacks_are_gone() -> None:
    gone = {*PARSED, *INSTEAD, *_FOUND_PROBLEMS} - set(COMMANDS)
    assert not gone, f"README.md no longer has {sorted(gone)}"
    assert len(COMMANDS) >= 15, COMMANDS


# --- lines of Python --------------------------------------------------------------------------------------------------

_OTHER_PROCESS = 'torch.distributed.init_process_group("agspeed")'
_KEYWORD = re.compile(r'(\w+)=("[^"]+"|True)')


def keywords() -> list[str]:
    """Returns the code spans that are one keyword of optimize."""
    known = agspeed.optimize.__kwdefaults__
    return [span for span in documents.spans(README) if (found := _KEYWORD.fullmatch(span)) and found[1] in known]


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


@pytest.mark.parametrize("snippet", [text for text in SNIPPETS if text != _OTHER_PROCESS])
def test_a_line_of_python_runs(snippet: str, names: dict[str, Any]) -> None:
    whole = snippet.replace("{...}", '{"mode": "max"}') + COMPLETED.get(snippet, "")
    exec(compile(whole, "README.md", "exec"), names)


@pytest.mark.parametrize("keyword", keywords())
def test_a_keyword_is_one_of_optimize(keyword: str, names: dict[str, Any]) -> None:
    more = ', mode="deterministic"' if keyword.startswith("plan") else ""
    exec(compile(f"agspeed.optimize(model, {keyword}{more})", "README.md", "exec"), names)


def test_the_backend_of_torch_distributed_is_found_by_its_name(tmp_path: Path) -> None:
    assert _OTHER_PROCESS in SNIPPETS
    group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "FREE_PORT"}
    settings = " ".join(f"{name}={value}" for name, value in group.items())
    program = json.dumps(
        f"import torch, agspeed; {_OTHER_PROCESS}; print(torch.distributed.get_backend())".replace('"', "'")
    )
    done = shell(f"{settings} python -c {program}", tmp_path, tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == "agspeed", done.stderr


def test_the_readme_offers_python_and_keywords() -> None:
    assert "model = agspeed.optimize(model)" in SNIPPETS and len(SNIPPETS) >= 8, SNIPPETS
    assert {'mode="max"', 'numerics="exact"', "strict=True"} <= set(keywords())

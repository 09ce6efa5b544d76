# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds, its reference is complete, and its commands, code and figures are correct.

A command or a block of Python that is also in README.md is left to test_readme.py. Other commands are parsed by the
parser of their program. Other blocks run.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import agspeed
from agspeed.cli.main import _parser
from agspeed.frontend.live_sessions import live_sessions
from agspeed.reporting import model, terminal
from benchmarks import coverage
from benchmarks import run as benchmarks_run
from tests.python.examples import documents
from tests.python.examples.documents import COMPLETED, README, ROOT
from tests.python.reporting import report_sample

DOCS = ROOT / "python" / "docs"
PAGES = {str(path.relative_to(DOCS / "pages")): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
ALL = re.sub(r"^#.*$", "", "\n".join(PAGES.values()), flags=re.M)
"""The text of all pages, without headings."""
RESULTS = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "benchmarks").glob("RESULTS*.md")))


# --- the site ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for name in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(name, reason=f"the site needs {name}: run make setup")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(DOCS / "mkdocs.yml")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site" / "reference" / "command-line.html").read_text(encoding="utf-8")
    assert "usage: agspeed doctor" in page


# --- the reference ----------------------------------------------------------------------------------------------------

REFERENCE = {
    "agspeed": "agspeed.md",
    "agspeed.distributed": "distributed.md",
    "agspeed.elastic": "elastic.md",
    "agspeed.horovod.torch": "horovod.md",
    "agspeed.nccl": "nccl.md",
}
"""Public module -> its page below `reference`."""


@pytest.mark.parametrize("module", REFERENCE)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    page = PAGES[f"reference/{REFERENCE[module]}"]
    documented = {
        *re.findall(rf"^::: {re.escape(module)}\.(\w+)$", page, re.M),
        *re.findall(r"^\| `(\w+)` \|", page, re.M),
    }
    missing = set(_public_names(module)) - documented
    assert not missing, f"{REFERENCE[module]} lacks {sorted(missing)}"


def test_the_reference_has_all_errors() -> None:
    assert "\n::: agspeed.errors\n" in PAGES["reference/errors.md"]


def _public_names(module: str) -> list[str]:
    path = ROOT / "python" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    lists = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    return next(ast.literal_eval(each.value) for each in lists if ast.unparse(each.targets[0]) == "__all__")  # type: ignore[no-any-return]


def test_every_command_has_its_help_text_on_the_page() -> None:
    asked = set(re.findall(r"^<!-- help:([ \w]*) -->$", PAGES["reference/command-line.md"], re.M))
    assert {words.strip() for words in asked} == set(_command_help().help_texts()) - {"bench"}


def _command_help() -> ModuleType:
    spec = importlib.util.spec_from_file_location("command_help", DOCS / "command_help.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Returns the commands of all pages that README.md does not have."""
    return [each for each in documents.commands(ALL, "sh") if each not in documents.commands(README)]


@pytest.mark.parametrize("command", commands())
def test_a_command_is_accepted_by_its_program(command: str) -> None:
    words = shlex.split(command)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        assert name.startswith(("AGSPEED_", "NCCL_")) and value, command
    try:
        _parse(words)
    except SystemExit as ended:
        pytest.fail(f"{command}: its program refuses it ({ended})")


def _parse(words: list[str]) -> None:
    """Raises: SystemExit if the program would refuse its arguments, AssertionError if there is no such program."""
    if words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
        assert {word for word in words[1:] if "=" not in word} <= targets
    elif words[0] == "agspeed" and words[1] == "bench":
        _parse_benchmark(words[2:] or ["run"])
    elif words[0] == "agspeed":
        _parser().parse_args(words[1:])
    elif words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        found: argparse.Namespace = get_args_parser().parse_args(words[1:])
        if found.module:
            _parse([found.training_script, *found.training_script_args])
    elif words[:2] == ["python", "benchmarks/run.py"]:
        _parse_benchmark(words[2:])
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        assert all(word in ("agspeed", *(f"agspeed[{extra}]" for extra in extras)) for word in words[2:])
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None
    else:
        assert words == ["python", "train.py"], "no rule says how to parse this command"


def _parse_benchmark(words: list[str]) -> None:
    (coverage if coverage.is_wanted(words) else benchmarks_run)._parser().parse_args(words)


# --- Python -----------------------------------------------------------------------------------------------------------

LAUNCHERS = {
    "compression.md": "torchrun --nproc-per-node 2 train.py",
    "distributed.md": "torchrun --nproc-per-node 2 train.py",
    "horovod.md": "agspeed run -np 2 python train.py",
}
"""Page -> the command that starts its complete script."""
_KEYWORD = re.compile(r"(\w+)=(\S.*)")


def blocks() -> list[tuple[str, str]]:
    """Returns (page, block) for each block of Python that README.md does not have."""
    known = documents.fences(README, "python")
    return [
        (page, block)
        for page, text in PAGES.items()
        for block in documents.fences(text, "python")
        if block not in known
    ]


def scripts() -> list[Any]:
    """Returns the complete scripts of each page as parameters (page, script)."""
    found = [(page, block) for page, block in blocks() if _is_script(block)]
    pages = [page for page, _ in found]
    return [pytest.param(*each, id=f"{each[0]}-{pages[:at].count(each[0])}") for at, each in enumerate(found)]


def _is_script(block: str) -> bool:
    return block.startswith("import torch\n")


def _needs_ray(block: str) -> bool:
    """True for a block whose job runs on a cluster of Ray. tests/python/horovod/ray runs such jobs."""
    return re.search(r"^from \S*\bray\b", block, re.M) is not None


def _changes_the_process(text: str) -> bool:
    """True for a block or statement that makes a group, or that changes what later imports find."""
    return not _is_script(text) and re.search(r"distributed|install_alias|nccl", text) is not None


def statements() -> list[str]:
    """Returns the statements in code spans that README.md does not have."""
    return [each for each in documents.snippets(ALL) if each not in documents.snippets(README)]


def keywords() -> list[str]:
    """Returns the code spans that are one keyword of optimize, unless README.md has them."""
    known = agspeed.optimize.__kwdefaults__
    spans = [each for each in documents.spans(ALL) if each not in documents.spans(README)]
    return [span for span in spans if (found := _KEYWORD.fullmatch(span)) and found[1] in known]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Names for the blocks: an optimized model and its optimizer, in a folder with a report. Closes all sessions at the
    end."""
    monkeypatch.chdir(tmp_path)
    model.Report(report_sample.report()).save("report.json")
    network = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    yield {
        "agspeed": agspeed,
        "function": agspeed.optimize(lambda: None),
        "model": agspeed.optimize(network),
        "optimizer": optimizer,
        "torch": torch,
    }
    for session in live_sessions():
        session.close()


@pytest.mark.parametrize(
    ("page", "block"),
    [
        (page, block)
        for page, block in blocks()
        if not (_is_script(block) or _changes_the_process(block) or _needs_ray(block))
    ],
)
def test_a_block_of_python_runs(page: str, block: str, names: dict[str, Any]) -> None:
    exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("statement", [each for each in statements() if not _changes_the_process(each)])
def test_a_line_of_python_runs(statement: str, names: dict[str, Any]) -> None:
    exec(compile(statement + COMPLETED.get(statement, ""), "a page", "exec"), names)


@pytest.mark.parametrize("keyword", keywords())
def test_a_keyword_is_one_of_optimize(keyword: str, names: dict[str, Any]) -> None:
    exec(compile(f"agspeed.optimize(torch.nn.Linear(2, 2), {keyword})", "a page", "exec"), names)


@pytest.mark.slow
def test_code_that_changes_its_process_runs_in_a_job_of_one_rank(tmp_path: Path) -> None:
    found = [*(block for _, block in blocks() if not _needs_ray(block)), *statements()]
    parts = [part for part in found if _changes_the_process(part)]
    assert any("init_process_group" in part for part in parts), parts
    imports = "import torch, agspeed, agspeed.distributed, agspeed.horovod, agspeed.nccl"
    (tmp_path / "train.py").write_text("\n".join([imports, *parts]))
    group = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=FREE_PORT"
    done = documents.shell(f"{group} python train.py", tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace-rank0.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "script"), scripts())
def test_a_complete_script_runs_on_two_ranks(page: str, script: str, tmp_path: Path) -> None:
    assert LAUNCHERS[page] in documents.commands(PAGES[page], "sh")
    (tmp_path / "train.py").write_text(script)
    done = documents.shell(LAUNCHERS[page], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0" in done.stdout and "rank 1" in done.stdout, done.stdout


def test_every_complete_script_has_a_launcher() -> None:
    assert {page for page, block in blocks() if _is_script(block)} == set(LAUNCHERS)


# --- texts and figures that other files own ---------------------------------------------------------------------------


def test_the_quick_start_is_that_of_the_readme() -> None:
    ours = documents.fences(PAGES["index.md"])
    assert ours == documents.fences(README)[:2]


@pytest.mark.parametrize(
    ("page", "source", "header"),
    [
        ("compatibility.md", "python/agspeed/torch_compat/README.md", "| torch | what was run | date |"),
        ("does-it-pay.md", "README.md", "| your run takes | use | cost |"),
        ("index.md", "README.md", "| your run takes | use | cost |"),
    ],
)
def test_a_copied_table_is_current(page: str, source: str, header: str) -> None:
    assert _table(PAGES[page], header) == _table((ROOT / source).read_text(encoding="utf-8"), header)


def _table(text: str, header: str) -> list[str]:
    assert text.count(header) == 1
    lines = text.split(header, 1)[1].splitlines()[1:]
    end = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:end]


@pytest.mark.parametrize("page", ["benchmarks.md", "does-it-pay.md", "horovod.md", "nccl.md"])
def test_figures_are_those_of_the_results(page: str) -> None:
    text = "\n".join(line for line in PAGES[page].splitlines() if "." in line)
    known = set(re.findall(r"\d+\.\d+", "\n".join([README, RESULTS, (ROOT / "benchmarks" / "README.md").read_text()])))
    documented = re.findall(
        r"\d+\.\d+(?!\.\d)", re.sub(r"Horovod 0\.28\.1|\b\d+\.\d+\.\d+|NCCL 2\.13 to 2\.30", "", text)
    )
    assert set(documented) <= known, sorted(set(documented) - known)


def test_the_report_is_what_agspeed_prints() -> None:
    [shown] = documents.fences(PAGES["report.md"], "text")
    assert shown.rstrip() == terminal.as_text(report_sample.report()).rstrip()


def test_messages_are_in_the_sources() -> None:
    """A heading quotes a message; `...` stands for names and numbers."""
    folders = ("comm", "python/agspeed", "runtime")
    paths = [path for folder in folders for ending in ("cpp", "py") for path in (ROOT / folder).rglob(f"*.{ending}")]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    source = re.sub(r"\"\s*\n\s*f?\"", "", texts)  # joins the parts of a text
    source = re.sub(r"\\(['\"])|`", r"\1", source.replace("{:.1f}", "1.0").replace("{BACKEND}", "agspeed"))
    headings = re.findall(r"^### `(.+)`$", PAGES["troubleshooting.md"], re.M)
    assert len(headings) > 50
    parts = {part.strip(" ().;:") for heading in headings for part in re.split(r"[.]{3}|, |^tuning: ", heading)}
    missing = [part for part in parts if part not in source]
    assert not missing, missing

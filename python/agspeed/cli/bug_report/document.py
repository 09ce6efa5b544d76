# SPDX-License-Identifier: Apache-2.0
"""Writes the facts and the doctor's findings as one Markdown text, redacted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agspeed import files
from agspeed.cli.bug_report import facts, redaction
from agspeed.cli.checks import Check
from agspeed.errors import UserError

__all__ = ["text", "write"]

_HEAD = """\
# agspeed: facts for a bug report

`agspeed doctor --report` has written this text. Read it before you attach it to an issue.

It contains:

- the versions of agspeed, torch and Python, and which parts of torch fit
- the operating system, the processor, the memory, GPUs and compilers
- agspeed's settings, with their origins
- the network interfaces, without addresses. Interfaces with the same number of a network are in one network
- the free space of the cache folder
- the findings of `agspeed doctor`

Placeholders replace texts that it must not contain:

- `[user]` and `[host]`: the names of users and hosts
- `[path]`: paths outside the system's folders, such as your home folder
- `[address]` and `[url]`: URLs and network addresses, except addresses of the loopback interface
- `***`: passwords, tokens and keys, and values of environment variables that are not settings of agspeed
"""


def text(findings: Iterable[Check]) -> str:
    """Returns the Markdown text with these findings of the doctor."""
    redactor = redaction.of_this_machine(facts.public())
    sections = {title: facts.rows(section) for title, section in facts.SECTIONS.items()}
    parts = [_HEAD, *(_section(title, rows, redactor) for title, rows in sections.items())]
    lines = [line for check in findings if check.name != "setting" for line in _finding(check, redactor)]
    return "\n".join([*parts, _block("Findings of the doctor", lines)])


def write(path: str, findings: Iterable[Check]) -> None:
    """Creates or replaces the file `path` with the text. A link in its place is replaced, not followed. Raises:
    UserError if that is impossible."""
    try:
        files.write(path, text(findings))
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {path!r}: {error.strerror or error}. Name a file in a folder that "
            "exists and that you may write to, or print the report with `--report -`."
        ) from None


def _section(title: str, rows: Sequence[facts.Row], redactor: redaction.Redactor) -> str:
    shown = [(redactor.apply(name), redactor.apply(value)) for name, value in rows]
    width = max((len(name) for name, _ in shown), default=0)
    return _block(title, [f"{name:<{width}}  {value}" for name, value in shown])


def _finding(check: Check, redactor: redaction.Redactor) -> list[str]:
    lines = [f"{check.status:<4}  {check.name:<17} {redactor.apply(check.detail)}"]
    return [*lines, f"      fix: {redactor.apply(check.remedy)}"] if check.remedy else lines


def _block(title: str, lines: Iterable[str]) -> str:
    """Returns a section whose lines Markdown shows as they are."""
    content = "\n".join(lines).replace("```", "'''")
    return f"## {title}\n\n```text\n{content}\n```\n"

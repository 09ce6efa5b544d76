# SPDX-License-Identifier: Apache-2.0
"""Comments and documents are written in plain sentences (CONTRIBUTING, "How we write").

The check counts phrasings that readers found hard, by regular expressions, and the words of README sentences. A hit is
a place to look at, and a sentence without a hit can still be hard to read. So a few hits are allowed in each folder.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

import pytest

from tests.lint import sources

MOST_HITS = 0.005
"""Share of a folder's lines of prose."""
MOST_WORDS = 26
"""In nine of ten sentences of all READMEs."""
_GENERATED = ("runtime/base/settings.md", "runtime/base/settings.def")
_QUOTES = ("CONTRIBUTING.md", "tests/lint/check_prose.py")
"""Files that quote the phrasings."""
_BEGIN = r"(?:^|[.;:!?(]\s+)"
_NOUNLESS = r"(?:of|that|which|with|without|in|on|it|before|after|this|whose|who|left|to|beyond)\b"
KINDS = {
    "a clause as the subject": rf"{_BEGIN}(?:What|Whatever|Whoever|Of what|Those that|Who)\s+(?!is\b|are\b)[a-z]",
    "a person for code": r"\b(?:whoever|nobody|somebody)\b",
    "a report for a call": r"\b(?:is|are|was|were|be|been|gets?|not)\s+(?:told|untold)\b|\bhears? (?:of|that|from)\b",
    "an infinitive for a rule": r"\b(?:is|are) nothing for\b|\bhas yet to\b|\bto be (?:given|told|had|found)\b",
    "Of without a noun": rf"{_BEGIN}(?:As o|O)f (?:a|an|the|all|each|one|what|those|its|this|these|how)\b",
    "those without a noun": rf"(?<!\bfor )\bthose {_NOUNLESS}",
    "so many for that many": r"\bso (?:many|much)\b(?! (?:more|less|of|as|that))",
    "is what, but for": r"\bis what\b|\bthan it is\b|\bbut for (?:that|what|the|those|its)\b",
}
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines of comments, docstrings and documents: (number, text without comment signs)."""
    is_inside = False  # a docstring, or a code block of a document
    for number, line in enumerate(text.splitlines(), 1):
        if path.endswith(".md"):
            if line.startswith("```"):
                is_inside = not is_inside
            elif not is_inside and line.strip():
                yield number, _without_marker(line)
        elif path.endswith(".py"):
            num_quotes = line.count('"""')
            if is_inside or num_quotes:
                yield number, line.strip().strip('"')
            elif line.lstrip().startswith("#"):
                yield number, line.strip().lstrip("# ")
            is_inside ^= num_quotes % 2 == 1
        elif "//" in line:
            yield number, line[line.index("//") :].lstrip("/< ")


def suspects(path: str, text: str) -> Iterator[str]:
    """Yields one sentence for each line with a phrasing of `KINDS`."""
    for number, line in prose(path, text):
        kind = next((kind for kind, pattern in _PATTERNS.items() if pattern.search(line)), None)
        if kind is not None:
            yield f"{path}:{number}: {kind}: {line}"


def _without_marker(line: str) -> str:
    return re.sub(r"^\s*(?:#+|[-*]|\d+\.)\s+", "", line).strip()


def num_words(text: str) -> list[int]:
    """The lengths of a document's sentences. Tables and headings have none; a text in back quotes is a word."""
    paragraphs, is_code = [""], False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        if is_code or not line.strip() or line.startswith(("```", "#", "|")):
            paragraphs.append("")
        elif re.match(r"\s*(?:[-*]|\d+\.)\s", line):
            paragraphs.append(_without_marker(line))
        else:
            paragraphs[-1] += " " + line
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", each)) for each in paragraphs)
    sentences = [sentence for each in plain for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*(])", each)]
    return [count for sentence in sentences if (count := len(re.findall(r"[A-Za-z]\w*", sentence))) > 2]


def _documented() -> list[str]:
    endings = (".md", ".py", ".h", ".cpp", ".def", ".td")
    return [path for path in sources.tracked() if path.endswith(endings) and path not in (*_GENERATED, *_QUOTES)]


def _folder(path: str) -> str:
    return "/".join(path.split("/")[:-1][:3]) or "."


def test_few_lines_of_each_folder_have_a_phrasing_that_readers_found_hard() -> None:
    hits, num_lines = collections.defaultdict(list), collections.Counter()  # type: ignore[var-annotated]
    for path in _documented():
        text = sources.read(path)
        num_lines[_folder(path)] += sum(1 for _ in prose(path, text))
        hits[_folder(path)] += suspects(path, text)
    allowed = {folder: max(1, MOST_HITS * num_lines[folder]) for folder in hits}
    found = [line for folder in sorted(hits) if len(hits[folder]) > allowed[folder] for line in hits[folder]]
    assert not found, "\n" + "\n".join(found)


def test_sentences_of_readmes_are_short() -> None:
    lengths = {path: num_words(sources.read(path)) for path in sources.tracked() if path.endswith("README.md")}
    all_lengths = sorted(length for each in lengths.values() for length in each)
    longest = sorted(lengths, key=lambda path: -max(lengths[path], default=0))[:5]
    assert all_lengths[int(0.9 * len(all_lengths))] <= MOST_WORDS, f"the longest are in {', '.join(longest)}"


@pytest.mark.parametrize(
    ("path", "text", "is_found"),
    [
        ("a.h", "// What fails is logged.", True),
        ("a.h", "// Logs failures.", False),
        ("a.h", "int nobody = 1;", False),
        ("a.py", '"""Returns those of the first rank."""', True),
        ("a.py", "x = 'nobody'", False),
        ("a.py", "# so many more than before", False),
        ("a.md", "```\nwhoever\n```", False),
        ("a.md", "- A rank is told when it ends.", True),
    ],
)
def test_a_line_is_judged_by_its_prose(path: str, text: str, is_found: bool) -> None:
    assert bool(list(suspects(path, text))) is is_found


def test_words_of_sentences_are_counted() -> None:
    text = """# Title

One two three. Four five
six `a b c` seven.

| a | b c d |

- eight nine ten
"""
    assert num_words(text) == [3, 5, 3]

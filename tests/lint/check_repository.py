# SPDX-License-Identifier: Apache-2.0
"""Conventions across files: licence lines, READMEs, sorted lists, one place that reads the environment, and no text
that belongs to one machine."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from tests.lint import sources

PRODUCT_FOLDERS = {"backends", "benchmarks", "comm", "compiler", "passes", "python", "runtime", "tests"}
CARRIES_SPDX = (
    ".c",
    ".cmake",
    ".cpp",
    ".def",
    ".h",
    ".py",
    ".pyi",
    ".sh",
    ".td",
    ".toml",
    "CMakeLists.txt",
    "Makefile",
)
TEXT = (*CARRIES_SPDX, ".ag", ".cfg", ".css", ".html", ".j2", ".js", ".json", ".md", ".mlir", ".txt", ".yaml", ".yml")

# Written with character classes, so that this file does not match its own patterns.
FOREIGN_TEXT = {
    r"(?<![\w.~$}])/(home/(?!user\b)|root/|work/|Users/)\w": "an absolute path of one machine",
    r"pypi[.]org|files[.]pythonhosted|download[.]pytorch|deb[.]debian|[-]-(extra-)?index-url": "a package registry",
    r"<<<<<<[<]|>>>>>>[>]": "an unresolved merge",
}


def text_files() -> list[str]:
    return [path for path in sources.tracked() if path.endswith(TEXT)]


def test_sources_open_with_the_licence_line() -> None:
    missing = []
    for path in sources.tracked():
        if path.endswith(CARRIES_SPDX):
            opening = sources.read(path).split("\n", 2)[:2]
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in opening):
                missing.append(path)
    assert not missing, "no SPDX line at the top of:\n" + "\n".join(missing)


def test_modules_and_headers_say_what_they_are() -> None:
    silent = []
    for path in sources.tracked():
        if path.endswith(".h") and not re.match(r"(//[^\n]*\n){2,}", sources.read(path)):
            silent.append(path)
        is_module = path.endswith(".py") and PurePosixPath(path).name not in ("__init__.py", "lit.cfg.py")
        if is_module and not (sources.parse(path).body and _docstring(path)):
            silent.append(path)
    assert not silent, "no opening comment or docstring in:\n" + "\n".join(silent)


def _docstring(path: str) -> str | None:
    return ast.get_docstring(sources.parse(path))


@pytest.mark.parametrize("folder", sorted(PRODUCT_FOLDERS))
def test_every_folder_has_a_readme(folder: str) -> None:
    path = f"{folder}/README.md"
    assert path in sources.tracked(), f"{path} is missing"


def test_nothing_is_tied_to_one_machine() -> None:
    found = []
    for path in text_files():
        for at, line in enumerate(sources.read(path).splitlines(), 1):
            found += [f"{path}:{at}: {what}: {line.strip()[:100]}" for pattern, what in FOREIGN_TEXT.items()
                      if re.search(pattern, line)]  # fmt: skip
    assert not found, "\n" + "\n".join(found)


def test_todo_notes_are_rare_and_have_a_reason() -> None:
    notes, bare, lines = 0, [], 0
    for path in [*sources.cpp_files(), *sources.python_files()]:
        text = sources.read(path)
        lines += text.count("\n")
        for at, line in enumerate(text.splitlines(), 1):
            if re.search(r"(//|#) *(TODO|FIXME|XXX)\b", line):
                notes += 1
                if not re.search(r"TODO\([^)]+\)", line):
                    bare.append(f"{path}:{at}: {line.strip()}")
    assert not bare, "TODO(reason) is the form:\n" + "\n".join(bare)
    assert notes * 1000 <= lines, f"{notes} TODOs in {lines} lines"


def test_only_the_settings_read_the_environment() -> None:
    lines = [
        (path, at, line)
        for path in sources.cpp_files()
        if not sources.is_test(path)
        for at, line in enumerate(sources.without_hidden_text(sources.read(path)).splitlines(), 1)
    ]
    reads = [f"{path}:{at}" for path, at, line in lines if re.search(r"\b(secure_)?getenv\b|\benviron\b", line)]
    elsewhere = [where for where in reads if not where.startswith("runtime/base/settings.cpp:")]
    assert not elsewhere, "add a row to runtime/base/settings.toml instead: " + ", ".join(elsewhere)
    assert sum("getenv" in line for _, _, line in lines) == 1


def test_what_is_written_from_the_table_of_settings_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_settings", sources.ROOT / ".ci" / "generate_settings.py")
    assert spec is not None and spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    stale = [path for path, text in generator.generate().items() if sources.read(path) != text]
    assert not stale, f"run make format: {', '.join(stale)} differ from runtime/base/settings.toml"


def test_variables_with_our_prefix_are_in_the_table_of_settings() -> None:
    """This includes variables that only tests, benchmarks and tools read. Otherwise agspeed would warn users of
    them."""
    rows = tomllib.loads(sources.read("runtime/base/settings.toml"))
    known = {name for row in rows["setting"] for name in (row["env"], *row.get("env_aliases", ()))}
    known.update(rows["internal"])
    read = re.compile(r"""(?:getenv\(|environ(?:\.get)?[\[(]\s*|\benv\(|\$\{?)["']?(AGSPEED_[A-Z_]+)""")
    found = [
        f"{path}: {name}"
        for path in text_files()
        if not sources.is_test(path) or path.endswith((".cfg.py", "conftest.py"))
        for name in read.findall(sources.read(path))
        if name not in known
    ]
    assert not found, "\n" + "\n".join(found)


def test_the_package_names_the_versions_of_python_that_it_supports() -> None:
    project = tomllib.loads(sources.read("pyproject.toml"))["project"]
    low, high = map(int, re.findall(r"3\.(\d+)", project["requires-python"]))
    named = re.findall(r"^Programming Language :: Python :: 3\.(\d+)$", "\n".join(project["classifiers"]), re.M)
    assert sorted(map(int, named)) == list(range(low, high))


# --- sorted lists -----------------------------------------------------------------------------------------------------


def sorted_blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, entries) for every list that a comment line "keep-sorted" opens.

    The list ends at a blank line, a comment, a closing bracket or a line with less indentation. Lines with more
    indentation belong to the entry above them. A first line that only opens a bracket, such as "set(NAMES", is not an
    entry. In CMake, a keyword such as SRCS opens a list, and the next keyword ends it.
    """
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if not re.fullmatch(r"\s*(//|#)\s*keep-sorted", line):
            continue
        entries: list[str] = []
        begin = at + 2 if at + 1 < len(lines) and re.search(r"[(\[{][^,)\]}]*$", lines[at + 1]) else at + 1
        keyword = re.match(r"\s*[A-Z]+(?: |$)(.*)", lines[begin]) if begin < len(lines) else None
        if keyword:
            entries = keyword.group(1).rstrip(")").split()
            begin += 1
        indent = None
        for entry in lines[begin:]:
            if re.match(r"\s*[A-Z]+ ", entry):
                break
            own = len(entry) - len(entry.lstrip())
            indent = own if indent is None else indent
            if own < indent or (own == indent and re.match(r"\s*(//|#|[)\]}]|$)", entry)):
                break
            if own == indent:
                entries.append(entry.strip().rstrip(",);"))
        yield at + 1, entries


def test_lists_marked_so_are_sorted() -> None:
    found = []
    for path in text_files():
        for at, entries in sorted_blocks(sources.read(path)):
            for above, below in itertools.pairwise(entries):
                if below < above:
                    found.append(f"{path}:{at}: {below!r} belongs above {above!r}")
            if not entries:
                found.append(f"{path}:{at}: an empty list")
    assert not found, "\n" + "\n".join(found)


def test_a_sorted_list_ends_where_a_person_would_say() -> None:
    text = "x = [\n  # keep-sorted\n  b(1,\n    z),\n  a,\n]\n# keep-sorted\nrow c\nrow d\n\nrow a\n"
    assert list(sorted_blocks(text)) == [(2, ["b(1", "a"]), (7, ["row c", "row d"])]
    text = "# keep-sorted\nset(NAMES\n  b.cpp\n  a.cpp)\nnext(c)\n"
    assert list(sorted_blocks(text)) == [(1, ["b.cpp", "a.cpp"])]
    text = "# keep-sorted\nadd(x\n  SRCS b.cpp a.cpp\n  DEPS c)\n"
    assert list(sorted_blocks(text)) == [(1, ["b.cpp", "a.cpp"])]
    text = "# keep-sorted\nadd(x\n  SRCS\n    b.cpp\n    a.cpp\n  DEPS c)\n"
    assert list(sorted_blocks(text)) == [(1, ["b.cpp", "a.cpp"])]

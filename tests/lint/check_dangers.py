# SPDX-License-Identifier: Apache-2.0
"""Dangerous operations: one place writes files, one place removes folders, and no code executes bytes that it reads.

Reports, caches, plans and messages come from files and sockets that other users may have written. In shared folders,
other users may put links in place of files. `LAWFUL` lists all other uses, each with the reason why it is harmless. An
entry whose use is gone has to be removed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.lint import sources

WRITES, REMOVES, INTERPRETS, GUESSES, JOINS = (
    "opens a file for writing",
    "removes a folder",
    "turns bytes into code or commands",
    "takes a name that another process may take",
    "joins search paths",
)
LAWFUL: dict[tuple[str, str], str] = {
    # keep-sorted
    ("comm/rendezvous/store.cpp", WRITES): "counts in a file that all ranks share, and follows no link to it",
    ("python/agspeed/cli/bench.py", JOINS): "puts this checkout in front of the user's own PYTHONPATH",
    ("python/agspeed/cli/cache_archive.py", WRITES): "into a file that files.py puts in place",
    ("python/agspeed/cli/probe.py", JOINS): "puts this package in front of the user's own PYTHONPATH",
    ("python/agspeed/files.py", WRITES): "the one place that writes files",
    ("python/agspeed/launch/install/carried_code.py", WRITES): "an archive in memory",
    ("python/agspeed/launch/install/installed_wheel.py", WRITES): "an archive in memory",
    ("python/agspeed/launch/install/installer.py", REMOVES): "pieces of agspeed that pip has just made and left",
    ("python/agspeed/launch/install/installer.py", WRITES): "in a folder of its own, which no other user may enter",
    ("python/agspeed/netbed/bed.py", WRITES): "in the scratch folder of a test bed, which only its user may enter",
    ("python/agspeed/netbed/system.py", JOINS): "the folders of the system's programs, which no other user names",
    ("python/agspeed/netbed/system.py", REMOVES): "the scratch folder of a test bed, named by its process's number",
    ("python/agspeed/private_folder.py", REMOVES): "the one place that removes folders",
    ("python/agspeed/private_folder.py", WRITES): "by the descriptor of a folder that no other user may enter",
    ("python/agspeed/regions/user_lines.py", INTERPRETS): "a constant text of its own",
    ("python/agspeed/tuning/child/job.py", WRITES): "into a file without a name",
    ("python/agspeed/tuning/child/worker.py", WRITES): "a file of /proc about the process itself",
    ("python/agspeed/tuning/decision_table.py", WRITES): "makes the database exclusively; SQLite writes it",
    ("runtime/base/files/write_file.cpp", WRITES): "the one place that writes files",
    ("runtime/kernel_cache.cpp", WRITES): "exclusively, by the descriptor of a folder that no other user may write to",
    ("runtime/tune/store/database_file.cpp", WRITES): "makes the database exclusively; SQLite writes it",
}

_INTERPRETERS = re.compile(
    r"(?:cloudpickle|dill|joblib|marshal|pickle|shelve)[.]\w+|(?:builtins[.])?(?:eval|exec)|os[.](?:popen|system)"
)
_WRITING_MODE = re.compile(r"['\"][rbt]*[awx+][rbt+]*['\"]")
_WRITING_FLAGS = re.compile(r"O_(?:APPEND|CREAT|RDWR|TRUNC|WRONLY)\b")
_SEARCH_PATHS = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
_CPP = {
    WRITES: re.compile(r"\b(?:o?fstream|fopen|freopen|raw_fd_ostream|mko?stemp|creat)\b|\bO_(?:CREAT|RDWR|WRONLY)\b"),
    REMOVES: re.compile(r"\bremove_all\b"),
    INTERPRETS: re.compile(r"(?<![.\w>])(?:std::)?(?:system|popen|exec[lv]\w*)\("),
    GUESSES: re.compile(r"\b(?:tmpnam|tempnam|mktemp)\b"),
}


def dangers_of_python(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line, danger) for every use in a file of the package."""
    for node in ast.walk(sources.parse(path)):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _dangers_of_call(node))
        elif _joins_search_paths(node):
            yield getattr(node, "lineno", 1), JOINS


def _dangers_of_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    words = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    values = [ast.unparse(value) for value in call.args]
    leaf = name.rpartition(".")[2]
    if leaf in ("open", "TarFile", "ZipFile") and values[:1] != ["os.devnull"]:
        is_method = leaf == "open" and name not in ("open", "io.open", "os.open")
        given = [*values[0 if is_method else 1 :], *words.values()]
        if any(_WRITING_MODE.fullmatch(value) or _WRITING_FLAGS.search(value) for value in given):
            yield WRITES
    if leaf in ("mkstemp", "write_bytes", "write_text", "NamedTemporaryFile") or name == "torch.save":
        yield WRITES
    if leaf == "rmtree":
        yield REMOVES
    is_code = _INTERPRETERS.fullmatch(name) or words.get("shell", "False") != "False"
    if is_code or (name == "torch.load" and words.get("weights_only") != "True"):
        yield INTERPRETS
    if name == "tempfile.mktemp":
        yield GUESSES


def _joins_search_paths(node: ast.AST) -> bool:
    """True for os.pathsep, environment["PYTHONPATH"] = ..., and the same key in a dictionary."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) == "os.pathsep"
    keys = node.keys if isinstance(node, ast.Dict) else []
    if isinstance(node, ast.Assign):
        keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
    return any(isinstance(key, ast.Constant) and key.value in _SEARCH_PATHS for key in keys)


def dangers_of_cpp(text: str) -> Iterator[tuple[int, str]]:
    for at, line in enumerate(sources.without_hidden_text(text).splitlines(), 1):
        yield from ((at, what) for what, pattern in _CPP.items() if pattern.search(line))


def uses() -> list[tuple[str, int, str]]:
    """Returns (path, line, danger) for all uses in the product."""
    found = []
    for path in sources.python_files():
        if path.startswith("python/agspeed/"):
            found += [(path, line, what) for line, what in dangers_of_python(path)]
    for path in sources.cpp_files():
        if not path.startswith(("benchmarks/", "tests/")):
            found += [(path, line, what) for line, what in dangers_of_cpp(sources.read(path))]
    return found


def test_no_use_is_new_and_none_of_the_list_is_gone() -> None:
    found = uses()
    new = [f"{path}:{line}: {what}" for path, line, what in found if (path, what) not in LAWFUL]
    assert not new, "see LAWFUL in tests/lint/check_dangers.py:\n" + "\n".join(new)
    gone = set(LAWFUL) - {(path, what) for path, _, what in found}
    assert not [entry for entry in gone if entry[0] in sources.tracked()], f"these are no more: {sorted(gone)}"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("open(path, 'w')", WRITES),
        ("open(path, mode='ab')", WRITES),
        ("path.open('r+b')", WRITES),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", WRITES),
        ("path.write_text(text)", WRITES),
        ("zipfile.ZipFile(path, 'w')", WRITES),
        ("torch.save(x, path)", WRITES),
        ("shutil.rmtree(folder)", REMOVES),
        ("pickle.loads(data)", INTERPRETS),
        ("eval(text)", INTERPRETS),
        ("subprocess.run(line, shell=True)", INTERPRETS),
        ("torch.load(path)", INTERPRETS),
        ("tempfile.mktemp()", GUESSES),
        ("os.pathsep.join(paths)", JOINS),
        ("environment['PYTHONPATH'] = path", JOINS),
        ("open(path)", None),
        ("path.open('rb')", None),
        ("os.open(path, os.O_RDONLY)", None),
        ("os.open(os.devnull, os.O_WRONLY)", None),
        ("zipfile.ZipFile(path)", None),
        ("torch.load(path, weights_only=True)", None),
        ("subprocess.run(words, shell=False)", None),
    ],
)
def test_a_use_is_known_when_seen(text: str, what: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "parse", lambda path: ast.parse(text))
    assert [found for _, found in dangers_of_python("x.py")] == ([] if what is None else [what])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("std::ofstream file(path);", WRITES),
        ("open(path, O_CREAT | O_WRONLY, 0600);", WRITES),
        ("std::filesystem::remove_all(folder);", REMOVES),
        ("std::system(line);", INTERPRETS),
        ("char* name = tmpnam(nullptr);", GUESSES),
        ("std::ifstream file(path);", None),
        ("open(path, O_RDONLY);  // not O_CREAT", None),
    ],
)
def test_a_use_in_cpp_is_known_when_seen(text: str, what: str | None) -> None:
    assert [found for _, found in dangers_of_cpp(text)] == ([] if what is None else [what])

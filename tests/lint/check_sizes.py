# SPDX-License-Identifier: Apache-2.0
"""Size budgets of files, functions and folders, and a report of the figures (`pytest -s tests/lint/check_sizes.py`).

A budget is a warning sign, not a law. If two halves of a file would have to be read together, keep one file of up to
600 lines and add it to EXPLAINED with the reason.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from tests.lint import sources

# File or folder -> the reason why it may exceed its budget.
EXPLAINED: dict[str, str] = {
    "comm/compress/lossless_kernels.cpp": "Highway compiles this one file once for each instruction set",
    "python/agspeed/config/table.py": "it is generated: one row for each setting",
    "python/agspeed/horovod/function_job.py": "run() takes horovod.run()'s arguments, in their order",
    "python/agspeed/horovod/ray/executor.py": "RayExecutor takes Horovod's arguments, in Horovod's order",
    "python/agspeed/horovod/torch/optimizer.py": "DistributedOptimizer takes Horovod's arguments, in Horovod's order",
    "python/csrc": "there is one bind_x.cpp for each component",
}

MAX_LINES = {".cpp": 600, ".h": 400, ".py": 600, ".cmake": 300, ".txt": 200}
PRODUCT = ("backends/", "comm/", "compiler/", "passes/", "python/", "runtime/")
MAX_PRODUCT_LINES = {**MAX_LINES, ".cpp": 400, ".py": 400}
MAX_EXPLAINED_LINES = 600
MAX_FUNCTION_LINES = 100
MAX_PASS_LINES = 150  # MLIR pass bodies and emitters build IR line by line
MAX_NESTING = 5
MAX_PARAMETERS = 8
MAX_FILES_IN_FOLDER = 40
MAX_FILES_IN_PRODUCT_FOLDER = 25
MAX_MEDIAN_FUNCTION = 15
MAX_P90_FUNCTION = 50


def all_functions(tests: bool) -> list[sources.Function]:
    paths = [path for path in sources.tracked() if sources.is_test(path) is tests]
    cpp = [function for path in paths if path.endswith(sources.CPP) for function in sources.cpp_functions(path)]
    python = [function for path in paths if path.endswith(".py") for function in sources.python_functions(path)]
    return cpp + python


def line_limit(path: str) -> int:
    return MAX_PASS_LINES if path.startswith(("passes/kernel/", "compiler/kernel/")) else MAX_FUNCTION_LINES


def report(violations: Iterable[str]) -> str:
    return "\n" + "\n".join(violations) + "\nsplit where the concepts split, or give the reason in EXPLAINED"


def file_limit(path: str) -> int | None:
    """Returns the most lines that the file may have, or None if files of its kind have no budget."""
    limits = MAX_PRODUCT_LINES if path.startswith(PRODUCT) else MAX_LINES
    limit = limits.get(PurePosixPath(path).suffix)
    return MAX_EXPLAINED_LINES if limit is not None and path in EXPLAINED else limit


def test_files_stay_within_their_budget() -> None:
    sizes = {path: sources.read(path).count("\n") for path in sources.tracked()}
    found = [
        f"{path}: {size} lines, limit {limit}"
        for path, size in sizes.items()
        if (limit := file_limit(path)) is not None and size > limit
    ]
    assert not found, report(found)


def test_functions_stay_within_their_budget() -> None:
    functions = all_functions(tests=False) + all_functions(tests=True)
    found = []
    for function in functions:
        if function.path in EXPLAINED:
            continue
        if function.length > line_limit(function.path):
            found.append(f"{function.where}: {function.length} lines, limit {line_limit(function.path)}")
        if function.nesting > MAX_NESTING:
            found.append(f"{function.where}: nested {function.nesting} deep, limit {MAX_NESTING}")
        if function.num_parameters > MAX_PARAMETERS:
            found.append(f"{function.where}: {function.num_parameters} positional parameters, limit {MAX_PARAMETERS}")
    assert not found, report(found)


def test_most_functions_are_short() -> None:
    lengths = sorted(function.length for function in all_functions(tests=False))
    median, p90 = statistics.median(lengths), lengths[int(len(lengths) * 0.9)]
    print(f"{len(lengths)} functions: median {median} lines, p90 {p90}, longest {lengths[-1]}")
    assert median <= MAX_MEDIAN_FUNCTION
    assert p90 <= MAX_P90_FUNCTION


def test_folders_are_not_crowded() -> None:
    """A README explains the other files of its folder, so it does not count."""
    paths = (PurePosixPath(path) for path in sources.tracked())
    counts = Counter(str(path.parent) for path in paths if path.name != "README.md")
    limits = {
        folder: MAX_FILES_IN_PRODUCT_FOLDER if folder.startswith(PRODUCT) else MAX_FILES_IN_FOLDER for folder in counts
    }
    found = [
        f"{folder}: {counts[folder]} files, limit {limit}"
        for folder, limit in limits.items()
        if counts[folder] > limit and folder not in EXPLAINED
    ]
    assert not found, report(found)


def test_explanations_name_files_that_exist() -> None:
    paths = set(sources.tracked()) | {str(PurePosixPath(path).parent) for path in sources.tracked()}
    assert set(EXPLAINED) <= paths, f"EXPLAINED names what is gone: {sorted(set(EXPLAINED) - paths)}"


def test_the_reader_of_cpp_functions_sees_what_a_person_sees(monkeypatch) -> None:
    text = """namespace a {
struct S {
  int x = 1;
  int get() const { return x; }
};
// { a brace in a comment
int f(int a,
      int b) {
  if (a) {
    for (;;) {
      call("}", '{', [] { return 1; });
    }
  }
  return 1'000;
}
S::S() : x(1) {}
constexpr int kTable[] = {1, 2};
}  // namespace a
"""
    monkeypatch.setattr(sources, "read", lambda path: text)
    found = [(function.line, function.length, function.nesting) for function in sources.cpp_functions("x.cpp")]
    assert found == [(4, 1, 0), (7, 9, 2), (16, 1, 0)]

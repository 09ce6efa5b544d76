# SPDX-License-Identifier: Apache-2.0
"""There are no import cycles among the modules of the Python package, and no include cycles among C++ files.

Imports inside functions and imports for types only count, too. Code in a cycle has no place to begin reading. To break
one, move the shared part below both sides, or pass in an object or a callable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tests.lint import sources

Graph = Mapping[str, Iterable[str]]


def circles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other, each sorted (Tarjan). A node with an edge to itself is a group, too."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1 or node in graph.get(node, ()):
                found.append(sorted(group))

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found)


def python_graph() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, anywhere in the module."""
    paths = {_module_of(path): path for path in sources.python_files() if path.startswith("python/agspeed/")}
    return {
        module: {home for _, name, _ in sources.imports(path) if (home := _home_of(name, paths)) is not None}
        for module, path in paths.items()
    }


def _module_of(path: str) -> str:
    return path.removeprefix("python/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _home_of(name: str, modules: Iterable[str]) -> str | None:
    """The module of an imported name, or the name itself if it is a module: agspeed.log.logger -> agspeed.log."""
    parent = name.rpartition(".")[0]
    return name if name in modules else parent if parent in modules else None


def cpp_graph() -> dict[str, set[str]]:
    """C++ file -> files of this repository that it includes."""
    files = sources.cpp_files()
    return {path: {header for _, header in sources.includes(path) if header in files} for path in files}


def test_python_modules_import_each_other_in_one_direction() -> None:
    found = circles(python_graph())
    assert not found, "\n".join(["", *map(" <-> ".join, found)])


def test_cpp_files_include_each_other_in_one_direction() -> None:
    found = circles(cpp_graph())
    assert not found, "\n".join(["", *map(" <-> ".join, found)])


def test_the_graphs_are_not_empty() -> None:
    assert "agspeed.errors" in python_graph()["agspeed.backends.registry"]
    assert "runtime/base/status.h" in cpp_graph()["runtime/tune/tuner.h"]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["b", "c"], "b": ["c"], "c": []}, []),
        ({"a": ["a"]}, [["a"]]),
        ({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}, [["a", "b", "c"]]),
        ({"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c"]}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_circles_are_found(graph: Graph, expected: list[list[str]]) -> None:
    assert circles(graph) == expected

# SPDX-License-Identifier: Apache-2.0
"""C++ types: no class converts to bool, and no namespace has two types of one name.

A `Status` that converts to bool makes `if (failure)` mean "if nothing failed". Two types of one name break a program
that links both, without an error of the linker. Types in anonymous namespaces belong to one file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.lint import sources

_TOKEN = re.compile(
    r"\bnamespace\b(?P<namespace>[\w:\s]*)\{"
    r"|\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:\[\[\w+\]\]\s*)?(?P<type>\w+)(?:\s+final)?\s*(?::(?!:)[^;{}()]*)?\{"
    r"|(?P<open>\{)|(?P<close>\})"
)


def types_of(text: str) -> Iterator[tuple[str, str]]:
    """Yields (namespace, name) for every type that the text defines outside of functions, classes and anonymous
    namespaces."""
    scopes: list[str | None] = []  # of each open brace: the name of its namespace; None: it opens no named namespace
    for token in _TOKEN.finditer(sources.without_hidden_text(text)):
        if token["type"] and None not in scopes:
            yield "::".join(filter(None, scopes)), token["type"]
        if token["close"]:
            del scopes[-1:]
        else:
            scopes.append((token["namespace"] or "").strip() or None)


def product_files() -> list[str]:
    return [path for path in sources.cpp_files() if not path.startswith(("benchmarks/", "tests/"))]


def test_no_class_converts_to_bool() -> None:
    found = [
        f"{path}:{at}: write isOk(), hasValue() or another question"
        for path in product_files()
        for at, line in enumerate(sources.without_hidden_text(sources.read(path)).splitlines(), 1)
        if re.search(r"\boperator\s+bool\b", line)
    ]
    assert not found, "\n" + "\n".join(found)


def test_each_name_is_one_type_in_its_namespace() -> None:
    places = defaultdict(set)
    for path in product_files():
        for namespace, name in types_of(sources.read(path)):
            places[f"{namespace}::{name}"].add(path)
    found = [f"{name}: {', '.join(sorted(paths))}" for name, paths in places.items() if len(paths) > 1]
    assert len(places) > 300
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("namespace a::b {\nstruct X { struct Inner {}; };\nclass [[nodiscard]] Y final : public X {};\n}", "XY"),
        ("namespace a::b {\nenum class X { kOne };\nvoid f() { struct Z {}; }\nenum Y {};\n}", "XY"),
        ("namespace a::b {\nstruct X::Inner final : Y {};\nstruct X {};\n}", "X"),
        ("namespace a::b {\nnamespace {\nstruct Y {};\n}\nstruct X {};\n}", "X"),
        ("namespace a::b {\nclass Y;\nstruct X {};  // struct Z {}\n}", "X"),
        ("namespace a::b {\ntemplate <typename T>\nstruct X {};\nX<int> f() { return {}; }\n}", "X"),
    ],
)
def test_types_of_a_namespace_are_found(text: str, types: str) -> None:
    assert list(types_of(text)) == [("a::b", name) for name in types]

# SPDX-License-Identifier: Apache-2.0
"""The methods of a class stand in the source file that belongs to the header with its declaration.

Methods in a second file would have to be read together with the first file, in both directions. To split a class, make
an object of one part.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import PurePosixPath

from tests.lint import sources

# Classes that may have several source files, split by topic. Tuner: events, the next action (max mode apart), reports.
# ProcessGroup: torch's functions, the group's members.
CHAPTERS = {
    "Membership": {"comm/c10d/membership", "comm/c10d/process_group"},
    "ProcessGroup": {"comm/c10d/membership", "comm/c10d/process_group"},
    "Tuner": {
        "runtime/tune/snapshot",
        "runtime/tune/tuner",
        "runtime/tune/tuner_plan",
        "runtime/tune/tuner_plan_max",
    },
}

_CLASS = re.compile(r"^\s*(?:class|struct)\s+(?:\[\[\w+\]\]\s+)?(\w+)(?:\s+final)?\s*(?::[^;{]*)?\{", re.MULTILINE)
_METHOD = re.compile(r"^(?![\s#}/])(?!return\b|using\b)[^\n;=(]*?\b(\w+)::~?\w+\([^;]*?\)[^;{]*\{", re.MULTILINE)


def stem(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def product_files() -> list[str]:
    return [path for path in sources.cpp_files() if not path.startswith(("tests/", "benchmarks/"))]


def strangers(texts: dict[str, str]) -> list[str]:
    """Returns one sentence per source file with methods of a class that only other headers declare."""
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for path, text in texts.items():
        for declared in _CLASS.finditer(text):
            homes[declared.group(1)].add(stem(path))
    found = set()
    for path, text in texts.items():
        if not path.endswith(".cpp"):
            continue
        for method in _METHOD.finditer(text):
            name = method.group(1)
            allowed = homes.get(name, set()) | (CHAPTERS.get(name, set()) if name in CHAPTERS else set())
            if name in homes and stem(path) not in allowed:
                found.add(f"{path}: methods of {name}, which {', '.join(sorted(homes[name]))} declares")
    return sorted(found)


def test_methods_stand_beside_their_class() -> None:
    found = strangers({path: sources.without_hidden_text(sources.read(path)) for path in product_files()})
    assert not found, "\n" + "\n".join(found)


def test_a_method_in_a_second_file_is_found() -> None:
    header = "class Ring {\n public:\n  void turn();\n  static int count();\n};\n"
    other = "void Ring::turn() {\n}\nint use() {\n  return Ring::count();\n}\n"
    assert strangers({"a/ring.h": header, "a/ring.cpp": other}) == []
    assert strangers({"a/ring.h": header, "a/wheel.cpp": other}) == [
        "a/wheel.cpp: methods of Ring, which a/ring declares"
    ]

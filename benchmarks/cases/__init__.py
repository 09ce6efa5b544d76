# SPDX-License-Identifier: Apache-2.0
"""Reads the declarative cases: every table of every .toml file in this folder is one case, named by its key."""

import tomllib
from pathlib import Path
from typing import Any

_REQUIRED = {"kind", "stresses"}


def load() -> list[dict[str, Any]]:
    """Returns all cases in file order. Raises ValueError that names file and case if a key is missing or doubled."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for name, row in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if missing := _REQUIRED - row.keys():
                raise ValueError(f"{path.name}: case {name!r} lacks {', '.join(sorted(missing))}")
            if name in found:
                raise ValueError(f"{path.name}: case {name!r} is defined twice")
            found[name] = {"name": name, **row}
    return list(found.values())


def select(names: list[str], kind: str | None) -> list[dict[str, Any]]:
    """Returns cases by name (empty: all) and kind (None: any). Raises ValueError for unknown names or an empty
    result."""
    every = load()
    if unknown := set(names) - {case["name"] for case in every}:
        raise ValueError(f"unknown case {', '.join(sorted(unknown))}; `benchmarks/run.py list` shows all")
    if others := [case["name"] for case in every if case["name"] in names and kind not in (None, case["kind"])]:
        raise ValueError(f"{', '.join(others)}: not of kind {kind!r}")
    chosen = [case for case in every if (not names or case["name"] in names) and kind in (None, case["kind"])]
    if not chosen:
        raise ValueError(f"no case of kind {kind!r}; kinds: {', '.join(sorted({case['kind'] for case in every}))}")
    return chosen


def narrowed(case: dict[str, Any], workloads: list[str]) -> dict[str, Any]:
    """Returns the case with only these of its `workloads`. Raises ValueError if it lacks one of them."""
    known = case.get("workloads", [])
    if others := [name for name in workloads if name not in known]:
        raise ValueError(f"{case['name']} has no workload {', '.join(others)}; it has: {', '.join(known) or 'none'}")
    return case | {"workloads": workloads}

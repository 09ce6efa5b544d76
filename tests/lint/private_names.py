# SPDX-License-Identifier: Apache-2.0
"""Private names of torch in the syntax tree of a module."""

from __future__ import annotations

import ast

# Parts of torch that are no public interface although they have no underscore.
CLOSED = ("torch.distributed.distributed_c10d", "torch.fx.experimental", "torch.multiprocessing.reductions")


def is_private(name: str) -> bool:
    """True if one name, without dots, is private."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name.strip("_") != ""


def is_private_path(path: str) -> bool:
    """True if a dotted name that begins with torch is private."""
    parts = path.split(".")
    if parts[0] != "torch" or parts[1:2] == ["ops"]:
        return False
    return any(map(is_private, parts[1:])) or any(path == closed or path.startswith(closed + ".") for closed in CLOSED)


def is_own(node: ast.expr) -> bool:
    """True for `self` and `cls`, whose private attributes belong to the module."""
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Returns local name -> absolute dotted name for all imports of a module except relative ones."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and path_of(node.value, found).startswith("torch.ops"):
            found.update(
                {target.id: path_of(node.value, found) for target in node.targets if isinstance(target, ast.Name)}
            )
    return found


def path_of(node: ast.expr, names: dict[str, str]) -> str:
    """Returns the dotted name of an expression such as torch.a.b, with imported names in full; "" for other
    expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        start = path_of(node.value, names)
        return f"{start}.{node.attr}" if start else ""
    return ""

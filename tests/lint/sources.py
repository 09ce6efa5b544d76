# SPDX-License-Identifier: Apache-2.0
"""The files that the lint checks read, and small parsers of C++ and Python text. Nothing is compiled or imported."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPP = (".cpp", ".h")


@functools.cache
def tracked() -> tuple[str, ...]:
    """Paths of all files under version control, relative to the repository root, with forward slashes."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(path for path in listed.split("\0") if path and (ROOT / path).is_file()))


@functools.cache
def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def cpp_files() -> list[str]:
    return [path for path in tracked() if path.endswith(CPP)]


def python_files() -> list[str]:
    return [path for path in tracked() if path.endswith(".py")]


def is_test(path: str) -> bool:
    return path.startswith("tests/")


# --- C++ --------------------------------------------------------------------------------------------------------------


def includes(path: str) -> list[tuple[int, str]]:
    """(line, header) of every #include, quoted or in angle brackets."""
    pattern = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')
    matches = ((at, pattern.match(line)) for at, line in enumerate(read(path).splitlines(), 1))
    return [(at, match.group(1)) for at, match in matches if match]


_HIDDEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/                      # comments
      | R"([^(\s]*)\(.*?\)\1"                   # raw strings
      | "(?:\\.|[^"\\\n])*"                     # strings
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'     # characters, but not the separators of 1'000
      | ^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*          # preprocessor lines with their continuations
    """,
    re.S | re.X | re.M,
)


def without_hidden_text(text: str) -> str:
    """Returns the code with comments, strings and preprocessor lines blanked out. Newlines are kept."""
    return _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


@dataclass(frozen=True)
class Function:
    """A function with a body: its first line, its length in lines, its deepest nesting and its positional
    parameters."""

    path: str
    line: int
    length: int
    nesting: int
    num_parameters: int = 0

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


_CONTROL = re.compile(r"\s*(?:(?:case\b[^:]*|default):\s*)?(if|for|while|switch|catch|do|else|try)\b")
_OPENS_FUNCTION = re.compile(r"\)\s*(?:const|noexcept|override|final|mutable|&|&&|->[^;{}]*|:[^;{}]*)*\s*$", re.S)


def cpp_functions(path: str) -> list[Function]:
    """Returns the outermost functions of a file. Control blocks count as nesting; initialisers and lambdas do not."""
    code = without_hidden_text(read(path))
    found: list[Function] = []
    # kind of every open brace ("scope", "function", "control" or "other"), number of open parentheses
    stack: list[tuple[str, int]] = []
    head_begin = start_line = nesting = parentheses = 0
    for match in re.finditer(r"[{};()]", code):
        at, symbol = match.start(), match.group()
        if symbol in "()":
            parentheses += 1 if symbol == "(" else -1
            continue
        if symbol == ";" and parentheses:  # the two semicolons of a for loop
            continue
        if symbol == "{":
            head = code[head_begin:at]
            kinds = [kind for kind, _ in stack]
            kind = _kind_of_block(head, inside="function" in kinds)
            if kind == "function":
                start_line = code.count("\n", 0, head_begin + len(head) - len(head.lstrip())) + 1
                nesting = 0
            stack.append((kind, parentheses))
            parentheses = 0
            nesting = max(nesting, kinds.count("control") + (kind == "control"))
        elif symbol == "}" and stack:
            kind, parentheses = stack.pop()
            if kind == "function":
                found.append(Function(path, start_line, code.count("\n", 0, at) + 2 - start_line, nesting))
        head_begin = at + 1
    return found


def _kind_of_block(head: str, inside: bool) -> str:
    if _CONTROL.match(head):
        return "control"
    if inside:
        return "other"
    if re.search(r"\b(namespace|class|struct|enum|union|extern)\b[^()]*$", head):
        return "scope"
    return "function" if _OPENS_FUNCTION.search(head) else "other"


# --- Python -----------------------------------------------------------------------------------------------------------


@functools.cache
def parse(path: str) -> ast.Module:
    return ast.parse(read(path), path)


def python_functions(path: str) -> list[Function]:
    found = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            # Keyword-only parameters are Python's options struct, so only positional parameters count.
            positional = [arg for arg in node.args.posonlyargs + node.args.args if arg.arg not in ("self", "cls")]
            found.append(Function(path, node.lineno, length, _nesting(node), len(positional)))
    return found


def _nesting(node: ast.AST) -> int:
    blocks = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        is_elif = isinstance(child, ast.If) and isinstance(node, ast.If) and node.orelse == [child]
        deepest = max(deepest, _nesting(child) + (isinstance(child, blocks) and not is_elif))
    return deepest


def imports(path: str) -> Iterator[tuple[int, str, bool]]:
    """(line, absolute dotted name, loaded when the module is) of everything a module imports."""
    package = path.removeprefix("python/").removesuffix(".py").split("/")[:-1]
    tree = parse(path)
    lazy = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, node not in lazy
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}", node not in lazy


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")

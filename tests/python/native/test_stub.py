# SPDX-License-Identifier: Apache-2.0
"""Compares agspeed/_native.pyi with the extension: the same names, and the same parameters and defaults for each.

The extension describes itself by pybind11's docstrings ("find(self: ..., key: dict, now: int) -> ...") and, for types
written in C, by text signatures. mypy checks types. TypedDicts and names that begin with an underscore exist in the
stub only.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, WrapperDescriptorType

import pytest

import agspeed
from agspeed import native

Api = dict[str, str]
"""Qualified name, such as "Tuner.adopt" -> "class", "property", "callable", or parameters without self: "(arm,
now=0)"."""


def test_the_stub_matches_the_extension() -> None:
    module = native.load()
    assert module is not None, native.why_missing()
    stub = Path(agspeed.__file__).with_name("_native.pyi").read_text(encoding="utf-8")
    found = differences(api_of_stub(stub), api_of_extension(module))
    assert not found, "\n" + "\n".join(found)


def differences(stub: Api, extension: Api) -> list[str]:
    return [
        f"{name}: {stub.get(name, 'nothing')} in the stub, {extension.get(name, 'nothing')} in the extension"
        for name in sorted(stub.keys() | extension.keys())
        if stub.get(name) != extension.get(name)
    ]


def api_of_stub(text: str) -> Api:
    typed_dicts = {"TypedDict"}
    common: dict[str, list[ast.stmt]] = {}

    def api_of(body: list[ast.stmt], prefix: str) -> Api:
        api: Api = {}
        for node in body:
            if isinstance(node, ast.FunctionDef) and is_compared(node.name):
                is_property = any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)
                api[prefix + node.name] = "property" if is_property else parameters(node)
            elif isinstance(node, ast.ClassDef) and typed_dicts.intersection(map(ast.unparse, node.bases)):
                typed_dicts.add(node.name)
            elif isinstance(node, ast.ClassDef) and node.name.startswith("_"):
                common[node.name] = node.body  # members that all classes of the extension have
            elif isinstance(node, ast.ClassDef):
                body = [*node.body, *(part for base in node.bases for part in common.get(ast.unparse(base), []))]
                api |= {prefix + node.name: "class"} | api_of(body, f"{prefix}{node.name}.")
        return api

    return api_of(ast.parse(text).body, "")


def api_of_extension(module: ModuleType | type, prefix: str = "") -> Api:
    api: Api = {}
    for name, value in vars(module).items():
        # The type inherits object's __init__, so it cannot be constructed.
        makes_nothing = name == "__init__" and isinstance(value, WrapperDescriptorType)
        if makes_nothing or not is_compared(name):
            continue
        if isinstance(value, type):
            api |= {prefix + name: "class"} | api_of_extension(value, f"{prefix}{name}.")
        elif isinstance(value, property) or inspect.isgetsetdescriptor(value):
            api[prefix + name] = "property"
        else:
            api[prefix + name] = parameters_of(value)
    if isinstance(module, type) and module.__text_signature__:  # a type written in C, made by __new__
        api[f"{prefix}__init__"] = parameters_of(module)
    return api


def is_compared(name: str) -> bool:
    return not name.startswith("_") or name in ("__call__", "__init__")


def parameters_of(function: Callable[..., object]) -> str:
    """Returns the parameters of a function of the extension, or of a type written in C."""
    signature = getattr(function, "__text_signature__", None)
    header = f"f{signature.replace('$', '')}" if signature else (function.__doc__ or "").split("\n", 1)[0]
    try:
        node = ast.parse(f"def {header}: ...").body[0]
    except SyntaxError:
        return f"no signature ({header!r})"
    assert isinstance(node, ast.FunctionDef)
    node.name = function.__name__
    return parameters(node)


def parameters(node: ast.FunctionDef) -> str:
    if node.name == "__call__":  # a type written in C: Python sees any arguments
        return "callable"
    for group in (node.args.posonlyargs, node.args.args):
        if group and group[0].arg == "self":
            del group[0]
    for part in ast.walk(node.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    return f"({ast.unparse(node.args)})"


@pytest.mark.parametrize(
    ("stub", "extension"),
    [
        ("def f() -> None: ...", {}),
        ("", {"f": "()"}),
        ("def f(a: int) -> None: ...", {"f": "(b)"}),
        ("def f(a: int) -> None: ...", {"f": "(a=0)"}),
        ("def f(a: int = ...) -> None: ...", {"f": "(a=0)"}),
        ("def f(a: int, /) -> None: ...", {"f": "(a)"}),
        ("class C:\n    def f(self) -> int: ...", {"C": "class", "C.f": "property"}),
        ("class C: ...", {"C": "class", "C.f": "()"}),
    ],
)
def test_what_only_one_side_has_is_a_difference(stub: str, extension: Api) -> None:
    assert len(differences(api_of_stub(stub), extension)) == 1


@pytest.mark.parametrize(
    ("stub", "extension"),
    [
        ("def f(a: int, b: str = '') -> None: ...", {"f": "(a, b='')"}),
        ("class C:\n    @property\n    def f(self) -> int: ...", {"C": "class", "C.f": "property"}),
        ("class C:\n    class D:\n        def f(self, /) -> int: ...", {"C": "class", "C.D": "class", "C.D.f": "()"}),
        ("class T(TypedDict):\n    a: int\nclass U(T, total=False):\n    b: int\n_Alias = int", {}),
    ],
)
def test_a_stub_that_says_the_same_has_no_difference(stub: str, extension: Api) -> None:
    assert differences(api_of_stub(stub), extension) == []

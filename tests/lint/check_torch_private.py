# SPDX-License-Identifier: Apache-2.0
"""Private names of torch are used in agspeed/torch_compat alone, so that one folder says what agspeed needs of them.

Private is each name with a leading underscore on the way from torch, and what CLOSED names: parts of torch that have no
underscore and change like those that have one. Double underscores are no private names, and operators below torch.ops
are named by PyTorch's dispatcher, whatever their names begin with. Four things are looked for: imports; attributes of
torch and of what was imported from it; strings that name a module or a name of torch; and private attributes of any
object that neither this class nor another one of the package defines.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lint import sources

HOME = "python/agspeed/torch_compat/"
PACKAGE = "python/agspeed/"
# Parts of torch without an underscore that are no public interface either.
CLOSED = ("torch.distributed.distributed_c10d", "torch.fx.experimental", "torch.multiprocessing.reductions")
BY_NAME = ("delattr", "getattr", "hasattr", "setattr")
# Names with an underscore that Python gives to named tuples and to the specs of modules.
OF_PYTHON = {"_asdict", "_fields", "_initializing", "_make", "_replace"}
_NAMED = re.compile(r"torch(\.\w+)+")


def is_private(name: str) -> bool:
    """Whether one name, without dots, is private."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name.strip("_") != ""


def is_private_path(path: str) -> bool:
    """Whether a dotted name that begins with torch is private."""
    parts = path.split(".")
    if parts[0] != "torch" or parts[1:2] == ["ops"]:
        return False
    return any(map(is_private, parts[1:])) or any(path == closed or path.startswith(closed + ".") for closed in CLOSED)


def defined_names(tree: ast.AST) -> set[str]:
    """Private names that a module of the package gives to something of its own."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What a module calls the things that it imports -> their absolute dotted names; relative imports are left out."""
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
    """The dotted name of an expression like torch.a.b, with what is imported written in full; empty for others."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        start = path_of(node.value, names)
        return f"{start}.{node.attr}" if start else ""
    return ""


def violations(path: str, tree: ast.Module, own: set[str]) -> list[str]:
    """One sentence per use of a private name; `own` are the private names that the package defines."""
    found = sorted({*_imports(tree), *_attributes(tree, own), *_strings(tree)})
    return [f"{path}:{line}: {name} is private to torch: use it in agspeed/torch_compat" for line, name in found]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, module) for module in modules if is_private_path(module))


def _attributes(tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            value, name = node.value, node.attr
        elif _is_access_by_name(node):
            value, name = node.args[0], node.args[1].value  # type: ignore[attr-defined]
        else:
            continue
        full = path_of(value, names)
        if full.split(".")[0] == "torch":
            if is_private_path(f"{full}.{name}") and not is_private_path(full):  # that one is another node
                yield node.lineno, f"{full}.{name}"
        elif is_private(name) and name not in own | OF_PYTHON and not _is_own(value) and not _is_of_python(full):
            yield node.lineno, f"{ast.unparse(value)}.{name}"


def _is_access_by_name(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME):
        return False
    return len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and isinstance(node.args[1].value, str)


def _is_of_python(full: str) -> bool:
    """Python's own modules have private parts as well, sys._getframe for one."""
    return full.split(".")[0] in sys.stdlib_module_names


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip(".")  # the beginning of an f-string may end with a dot
            if _NAMED.fullmatch(text) and is_private_path(text):
                yield node.lineno, f'"{node.value}"'


def product_files() -> list[str]:
    """All modules of the package, those that are not under version control yet included."""
    return sorted(str(path.relative_to(sources.ROOT)) for path in (sources.ROOT / PACKAGE).rglob("*.py"))


def test_private_names_of_torch_are_used_in_one_folder() -> None:
    paths = [path for path in product_files() if not path.startswith(HOME)]
    # What torch_compat sets on objects of torch is torch's, and the rest of the package goes without it.
    own = set().union(*(defined_names(sources.parse(path)) for path in paths))
    own |= {Path(path).stem for path in paths} | {"_native"}
    found = [line for path in paths for line in violations(path, sources.parse(path), own)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo",
        "import torch.fx.experimental.symbolic_shapes as shapes",
        "from torch import _guards",
        "from torch._C import _nn",
        "from torch.distributed import distributed_c10d as c10d",
        "from torch.utils._pytree import tree_map",
        "from torch.utils.checkpoint import _StopRecomputationError as Stop",
        "import torch\ntorch._foreach_add_([], [])",
        "import torch\ntorch.utils._pytree.tree_map",
        "import torch as t\nt._C",
        "from torch import distributed\ndistributed._DEFAULT_FIRST_BUCKET_BYTES",
        'import torch\ngetattr(torch, "_check")',
        'import_module("torch._inductor")',
        'name = "x"\nf"torch._C.{name}"',
        'sys.modules.get("torch._dynamo.config")',
        "def run(module):\n    return module._compiled_call_impl",
        "def run(module):\n    module._compiled_call_impl = None",
        'def run(module):\n    setattr(module, "_compiled_call_impl", None)',
    ],
)
def test_a_private_name_is_refused(code: str) -> None:
    assert len(violations("x.py", ast.parse(code), {"_mine"})) == 1


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.__version__",
        "import torch\ntorch.ops.aten._to_copy.default",
        "from torch.nn.parallel import DistributedDataParallel",
        "from agspeed.torch_compat import _hidden",
        "from ._native import NodeSpec",
        "import sys\nsys._getframe(1)",
        "class A:\n    def f(self):\n        return self._anything",
        "def run(other):\n    return other._mine, other.__dict__",
        'getattr(x, "_mine", None)',
        '"""torch._dynamo is left alone."""',
        '"torch.distributed.tensor"',
        "for _ in x._mine: pass",
    ],
)
def test_what_is_public_or_our_own_is_allowed(code: str) -> None:
    assert violations("x.py", ast.parse(code), {"_mine"}) == []


def test_names_that_are_set_on_other_objects_are_no_names_of_ours() -> None:
    code = "def f(module):\n    module._theirs = 1\nclass A:\n    def g(self):\n        self._mine = 1\n_ours = 2"
    assert defined_names(ast.parse(code)) == {"_mine", "_ours"}

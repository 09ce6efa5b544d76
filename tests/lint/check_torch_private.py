# SPDX-License-Identifier: Apache-2.0
"""Only agspeed/torch_compat uses private names of torch, so that one folder shows all that agspeed needs of them.

A name is private if any part of its path from torch begins with an underscore. The parts of torch in
`private_names.CLOSED` are private, too: they have no underscore but change in the same way. Double underscores do not
count. Operators below torch.ops do not count either, because PyTorch's dispatcher names them.

The check finds four things: imports; attributes of torch and of objects imported from it; strings that name a module or
a name of torch; and private attributes of any object, if the package does not define the name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lint import sources
from tests.lint.private_names import imported_names, is_own, is_private, is_private_path, path_of

HOME = "python/agspeed/torch_compat/"
PACKAGE = "python/agspeed/"
BY_NAME = ("delattr", "getattr", "hasattr", "setattr")
# Names with an underscore that belong to Python's named tuples and module specs.
OF_PYTHON = {"_asdict", "_fields", "_initializing", "_make", "_replace"}
_NAMED = re.compile(r"torch(\.\w+)+")


def defined_names(tree: ast.AST) -> set[str]:
    """Returns the private names that a module of the package defines for its own objects."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def violations(path: str, tree: ast.Module, own: set[str]) -> list[str]:
    """Returns one sentence per use of a private name. `own` are the private names that the package defines."""
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
            # a private path is reported at another node
            if is_private_path(f"{full}.{name}") and not is_private_path(full):
                yield node.lineno, f"{full}.{name}"
        elif is_private(name) and name not in own | OF_PYTHON and not is_own(value) and not _is_of_python(full):
            yield node.lineno, f"{ast.unparse(value)}.{name}"


def _is_access_by_name(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME):
        return False
    return len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and isinstance(node.args[1].value, str)


def _is_of_python(full: str) -> bool:
    """True for private parts of Python's own modules, such as sys._getframe."""
    return full.split(".")[0] in sys.stdlib_module_names


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip(".")  # the beginning of an f-string may end with a dot
            if _NAMED.fullmatch(text) and is_private_path(text):
                yield node.lineno, f'"{node.value}"'


def product_files() -> list[str]:
    """Returns all modules of the package, including modules that are not under version control yet."""
    return sorted(str(path.relative_to(sources.ROOT)) for path in (sources.ROOT / PACKAGE).rglob("*.py"))


def test_private_names_of_torch_are_used_in_one_folder() -> None:
    paths = [path for path in product_files() if not path.startswith(HOME)]
    # torch_compat is left out: it sets private attributes on torch's objects, which the rest of the package must not
    # use.
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

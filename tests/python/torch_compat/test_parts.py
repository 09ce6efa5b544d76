# SPDX-License-Identifier: Apache-2.0
"""The tables of torch_compat: they list all names that its modules use, this torch has them, and checks change
nothing."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from agspeed.errors import UnsupportedError
from agspeed.torch_compat import part, probe, release
from tests.lint import private_names as private
from tests.lint import sources

pytestmark = pytest.mark.smoke

NO_PARTS = ("__init__", "compiler_cache", "misfits", "part", "probe", "registry", "release")
FOLDER = "python/agspeed/torch_compat"
GUARDED = {"_BACKENDS", "_ddp_weakref", "_dynamo_source", "_in_backward_optimizers", "_timeout", "_torchdynamo_disable"}
"""Attributes read by getattr or hasattr, or set for torch to find. Everything else works without them."""
UNCHECKABLE = {"_boxed_call", "_param_name_to_source", "_set_comm_hook_name", "_set_static_graph"}
"""Marks on agspeed's own objects, and methods of classes that exist only once a wrapper is made."""


def names_used(tree: ast.Module) -> Iterator[str]:
    """Yields the dotted private names, and the private attributes of other objects, that a module uses when it runs."""
    hidden = {child for node in ast.walk(tree) if sources._is_type_checking(node) for child in ast.walk(node)}
    names = private.imported_names(tree)
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and not private.is_own(node.value):
            full = private.path_of(node.value, names)
            if full.split(".")[0] == "torch":
                yield f"{full}.{node.attr}"
            elif private.is_private(node.attr):
                yield f".{node.attr}"


def covered(name: str, table: part.Part) -> bool:
    paths = [need.partition("(")[0] for need in (*table.exports, *table.needs)]
    if name.startswith("."):
        return name[1:] in GUARDED | UNCHECKABLE or any(path.endswith(name) for path in paths)
    return any(path == name or path.startswith(f"{name}.") for path in paths)


def parts() -> list[str]:
    found = [path.stem for path in (sources.ROOT / FOLDER).glob("*.py")]
    return sorted(name for name in found if name not in NO_PARTS)


def test_each_part_is_probed() -> None:
    assert parts() == sorted(probe.PARTS)
    assert all(probe.part(name).name == name for name in probe.PARTS)


@pytest.mark.parametrize("name", parts())
def test_a_table_names_all_that_its_module_uses(name: str) -> None:
    table = probe.part(name)
    used = sorted(set(names_used(sources.parse(f"{FOLDER}/{name}.py"))))
    missing = [
        each for each in used if (each.startswith(".") or private.is_private_path(each)) and not covered(each, table)
    ]
    assert not missing, f"PART of {name} does not name {missing}"


@pytest.mark.parametrize("name", parts())
def test_what_a_module_offers_is_what_its_type_checker_sees(name: str) -> None:
    tree = sources.parse(f"{FOLDER}/{name}.py")
    blocks = [node for node in tree.body if isinstance(node, ast.If) and sources._is_type_checking(node)]
    shown = {
        f"{node.module}.{alias.name}"
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if private.is_private_path(f"{node.module}.{alias.name}")
    }
    offered = set(probe.part(name).exports)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert offered <= shown | {path for path in offered if path.rpartition(".")[2] in used}
    assert {
        path for path in shown if path.rpartition(".")[2] in (module_of(name).__dict__.get("__all__") or ())
    } == offered


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"agspeed.torch_compat.{name}")


def test_this_torch_has_it_all() -> None:
    found = probe.to_json()
    ranks = {"c10d", "ddp", "fsdp", "job_store"}
    import torch

    expected = {name: text for name, text in found.items() if torch.distributed.is_available() or name not in ranks}
    assert not [text for text in expected.values() if text]
    assert json.loads(json.dumps(found)) == found


def test_all_that_is_offered_can_be_imported() -> None:
    for name in parts():
        for path in probe.part(name).exports:
            assert getattr(module_of(name), path.rpartition(".")[2]) is not None


@pytest.mark.slow
def test_asking_loads_no_module_of_torch() -> None:
    program = (
        "import sys, torch, torch._dynamo\nfrom agspeed.torch_compat import probe\n"
        "before = set(sys.modules)\nprobe.probe()\n"
        "print([name for name in set(sys.modules) - before if not name.startswith('agspeed.')])"
    )
    assert in_a_process(program).strip() == "[]"


def test_importing_a_part_loads_no_torch() -> None:
    program = "import sys\nimport agspeed\n"
    program += "".join(
        f"import agspeed.torch_compat.{name}\n" for name in parts() if name not in ("autograd", "checkpoint")
    )
    assert in_a_process(program + "print('torch' in sys.modules)").strip() == "False"


def in_a_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", program],
        env=private_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def private_environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.mark.parametrize(
    ("need", "missing"),
    [
        ("torch.nn.Module._call_impl", None),
        ("torch.nn.Module._gone", "torch.nn.Module._gone"),
        ("torch.nn.Module._non_persistent_buffers_set", None),  # set by each module's __init__
        ("torch._nowhere.deep.down", "torch._nowhere"),
        ("torch._dynamo.eval_frame._optimize(dynamic)", None),
        ("torch._dynamo.eval_frame._optimize(speed)", "torch._dynamo.eval_frame._optimize(speed=...)"),
        ("torch._dynamo.pgo.CodeState.automatic_dynamic", None),
    ],
)
def test_a_need_is_met_or_named(need: str, missing: str | None) -> None:
    assert part.first_missing(need, may_import=True) == missing


def test_a_module_that_is_not_loaded_is_judged_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor

    monkeypatch.delitem(sys.modules, "torch._inductor.compile_fx", raising=False)
    monkeypatch.delattr(torch._inductor, "compile_fx", raising=False)
    assert part.first_missing("torch._inductor.compile_fx.compile_fx_inner", may_import=False) is None
    gone = "torch._inductor.compile_fx.compiled_by_hand"
    assert part.first_missing(gone, may_import=False) == gone
    assert "torch._inductor.compile_fx" not in sys.modules


def test_what_is_missing_is_an_error_with_the_sentence() -> None:
    table = part.Part("novelties", __name__, exports=("torch._gone.Thing",), lost="the novelties are lost")
    with pytest.raises(
        UnsupportedError, match=r"part `novelties`: torch \S+ has no torch._gone; the novelties are lost"
    ):
        table.load("Thing")
    with pytest.raises(AttributeError):
        table.load("other")


@pytest.mark.parametrize(("text", "minor"), [("2.11.0+cu130", (2, 11)), ("2.16.0a0+git12", (2, 16)), ("main", (0, 0))])
def test_a_minor_is_read_from_a_version(text: str, minor: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "version", lambda: text)
    assert release.minor.__wrapped__() == minor


def test_a_torch_that_is_too_old_fits_nothing_and_a_new_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "minor", lambda: (2, 10))
    assert "is older than 2.11" in probe._misfit.__wrapped__("modes", False, 0)
    monkeypatch.setattr(probe, "minor", lambda: (2, 99))
    assert probe._misfit.__wrapped__("modes", False, 0) == ""

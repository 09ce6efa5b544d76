# SPDX-License-Identifier: Apache-2.0
"""Allowed C++ includes and Python imports between components. The tables below are the rule, without exceptions.

A component is a folder. A file belongs to the longest component that is a prefix of its path. Every component may use
itself. To add a component, add one row below all rows that it names. Tests may use anything; nothing may use tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest

from tests.lint import sources

_GRAPH = ("compiler/graph", "runtime/base")
_RUNTIME = ("runtime", "runtime/aten", "runtime/base", "runtime/memory")
_FRAMES = ("comm/io", "comm/rendezvous", "comm/security", "comm/topology", "comm/wire", "runtime/base")
_WORLD = (
    *_FRAMES,
    "comm/collective",
    "comm/engine",
    "comm/messaging",
    "comm/network",
    "comm/plan",
    "comm/reduce",
    "comm/schedule",
    "comm/transport",
    "comm/transport/multirail",
    "comm/transport/shm",
)

# Component -> components whose headers it may include. Rows are in layer order: a row names only rows above it.
CPP_LAYERS: dict[str, tuple[str, ...]] = {
    "runtime/base": (),
    "runtime/memory": ("runtime/base",),
    "runtime/device": ("runtime/base",),
    "runtime/tune/measure": ("runtime/base",),
    "runtime/tune/store": ("runtime/base",),
    "runtime/tune": ("runtime/base", "runtime/tune/measure", "runtime/tune/store"),
    "runtime/random": ("runtime/base",),
    "runtime": ("runtime/base", "runtime/memory"),
    "runtime/aten": ("runtime", "runtime/base", "runtime/memory", "runtime/random"),
    "runtime/autograd": _RUNTIME,
    "comm/security": ("runtime/base",),
    "comm/topology": ("runtime/base",),
    "comm/io": ("runtime/base",),
    "comm/wire": ("comm/security", "runtime/base"),
    "comm/rendezvous": ("comm/io", "comm/security", "comm/topology", "comm/wire", "runtime/base"),
    "comm/transport": _FRAMES,
    "comm/transport/faulty": (*_FRAMES, "comm/transport"),
    "comm/transport/multirail": (*_FRAMES, "comm/transport"),
    "comm/transport/shm": (*_FRAMES, "comm/transport"),
    "comm/transport/tcp": (*_FRAMES, "comm/transport"),
    "comm/messaging": (*_FRAMES, "comm/transport"),
    "comm/network": (
        *_FRAMES,
        "comm/messaging",
        "comm/transport",
        "comm/transport/multirail",
        "comm/transport/shm",
        "comm/transport/tcp",
    ),
    "comm/channel": (*_FRAMES, "comm/messaging", "comm/network", "comm/transport", "comm/transport/tcp"),
    "comm/nccl_net": ("comm/channel", "comm/topology", "runtime/base"),
    "comm/compress": ("runtime/base",),
    "comm/reduce": ("runtime/base",),
    "comm/schedule": ("comm/reduce", "runtime/base"),
    "comm/plan": ("comm/reduce", "comm/schedule", "runtime/base"),
    "comm/engine": (
        "comm/compress",
        "comm/io",
        "comm/messaging",
        "comm/reduce",
        "comm/schedule",
        "comm/wire",
        "runtime/base",
    ),
    "comm/collective": (
        "comm/engine",
        "comm/io",
        "comm/messaging",
        "comm/plan",
        "comm/reduce",
        "comm/schedule",
        "comm/wire",
        "runtime/base",
    ),
    "comm/named": (
        "comm/collective",
        "comm/engine",
        "comm/io",
        "comm/messaging",
        "comm/reduce",
        "comm/schedule",
        "comm/wire",
        "runtime/base",
    ),
    "comm/world": (*_WORLD, "comm/named"),
    "comm": (*_WORLD, "comm/named", "comm/world"),
    "comm/c10d": ("comm", "runtime/base"),
    "comm/horovod": ("comm", "comm/c10d", "runtime/base"),
    "comm/c_api": ("comm", "comm/named", "runtime/base"),
    "comm/examples": ("comm", "runtime/base"),
    "compiler": ("runtime/base",),
    "compiler/graph": ("runtime/base",),
    "compiler/import": _GRAPH,
    "compiler/import/composites": (*_GRAPH, "compiler/import"),
    "passes/graph": _GRAPH,
    "passes": (*_GRAPH, "compiler", "passes/graph"),
    "passes/kernel": ("compiler", "passes", "runtime/base"),
    "compiler/kernel/emit": (*_GRAPH, "passes/kernel"),
    "compiler/kernel/object": ("passes/kernel", "runtime", "runtime/base"),
    "compiler/kernel": (
        *_GRAPH,
        "compiler",
        "compiler/kernel/emit",
        "compiler/kernel/object",
        "passes/kernel",
        "runtime",
    ),
    "compiler/program": (*_GRAPH, "passes", "runtime"),
    "backends/nvptx": (
        *_GRAPH,
        "compiler",
        "compiler/kernel",
        "compiler/kernel/emit",
        "passes/kernel",
        "runtime",
        "runtime/device",
    ),
    "backends": (*_GRAPH, "backends/nvptx", "compiler", "compiler/kernel", "runtime"),
    "compiler/driver": (*_GRAPH, "backends", "compiler", "compiler/import", "compiler/program", "passes", "runtime"),
    "compiler/tools": (
        *_GRAPH,
        "compiler",
        "compiler/import",
        "compiler/kernel/emit",
        "passes",
        "passes/kernel",
    ),
    "python/csrc": (
        "comm",
        "comm/c10d",
        "comm/compress",
        "comm/horovod",
        "compiler/driver",
        "runtime/autograd",
        "runtime/tune",
        "runtime/tune/store",
        *_RUNTIME,
    ),
}

# Headers of other projects -> the only components that may include them.
FOREIGN_HEADERS: dict[str, tuple[str, ...]] = {
    r"(ATen|c10|caffe2|torch)/": ("comm/c10d", "comm/horovod", "python/csrc", "runtime/aten", "runtime/autograd"),
    r"(llvm|llvm-c|mlir|mlir-c)/": (
        "backends/nvptx",
        "compiler/kernel",
        "compiler/kernel/emit",
        "compiler/kernel/object",
        "compiler/tools",
        "passes/kernel",
    ),
    r"(pybind11/|Python\.h)": ("python/csrc",),
    r"torch/(extension|python|csrc/(Exceptions|THP|python_|.*/(pybind|python_)))": ("python/csrc",),
    r"(cuda|nvrtc|nvml)\w*\.h": (),
    r"fmt/": ("runtime/base",),
    r"hwy/": ("comm/compress", "comm/reduce", "runtime/random"),
    r"(openssl/|intel-ipsec-mb\.h)": ("comm/security",),
    r"sqlite3": ("runtime/tune/store",),
}

# Units of the Python package, lowest first. A unit may import units of lower rows, and itself.
PYTHON_ORDER: tuple[tuple[str, ...], ...] = (
    ("bounded_json", "errors", "files", "native_files", "parent_death", "private_folder", "version", "when_loaded"),
    ("config", "log"),
    ("torch_compat",),
    ("_native", "membership", "nccl", "netbed", "netprobe", "reporting"),
    ("launch",),
    ("cluster", "inspection"),
    ("devices", "first_step", "graph_spec", "native"),
    ("distributed", "transfer"),
    ("elastic",),
    ("horovod",),
    ("backends",),
    ("regions",),
    ("tuning",),
    ("frontend",),
    ("autoload",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
# These units read JSON and settings only: no torch, no native code, and no other units than the ones listed.
PURE_PYTHON = {
    "bounded_json": (),
    "cluster": ("errors", "launch", "log", "version"),
    "errors": (),
    "config": ("errors",),
    "files": (),
    "inspection": ("bounded_json", "errors", "launch", "reporting"),
    "launch": ("bounded_json", "config", "errors", "files", "membership", "netprobe", "parent_death", "version"),
    "log": ("errors",),
    "membership": ("bounded_json", "errors"),
    "nccl": ("errors",),
    "netbed": ("errors", "parent_death"),
    "netprobe": ("bounded_json", "errors"),
    "parent_death": (),
    "private_folder": (),
    "reporting": ("bounded_json", "errors", "config", "files", "log"),
}


def component_of(path: str) -> str | None:
    """Returns the component of a C++ file, or None for tests and benchmarks."""
    owners = [name for name in CPP_LAYERS if path.startswith(f"{name}/")]
    return max(owners, key=len, default=None)


def cpp_violations(path: str, headers: Iterable[tuple[int, str]]) -> list[str]:
    """Returns one sentence per include in `path` that the tables do not allow."""
    component = component_of(path)
    if component is None:
        return []
    found = []
    for line, header in headers:
        for pattern, owners in FOREIGN_HEADERS.items():
            if re.match(pattern, header) and component not in owners:
                found.append(f"{path}:{line}: {component} must not include {header}: only {', '.join(owners)} may")
        target = component_of(header)
        if target is None and re.match(r"(tests|benchmarks)/", header):
            found.append(f"{path}:{line}: product code must not include {header}")
        elif target not in (None, component, *CPP_LAYERS[component]):
            found.append(f"{path}:{line}: {component} must not include {header} of {target}")
    return found


def unit_of(module: str, is_unit: Callable[[str], bool]) -> str | None:
    """agspeed.frontend.guards -> frontend; agspeed.optimize -> __init__; another package -> None."""
    parts = module.split(".")
    if parts[0] != "agspeed":
        return None
    return parts[1] if len(parts) > 1 and is_unit(parts[1]) else "__init__"


def rank_of(unit: str) -> int:
    return next(rank for rank, row in enumerate(PYTHON_ORDER) if unit in row)


def known_units() -> set[str]:
    return {unit for row in PYTHON_ORDER for unit in row}


def python_violations(path: str, imported: Iterable[tuple[int, str, bool]]) -> list[str]:
    """Returns one sentence per import in `path` that the order does not allow. Lazy imports count, too."""
    unit = path.removeprefix("python/agspeed/").split("/")[0].removesuffix(".py")
    if unit not in known_units():
        return [f"{path}:1: unit {unit} has no row in PYTHON_ORDER"]
    found = []
    for line, module, _ in imported:
        target = unit_of(module, known_units().__contains__)
        if module.split(".")[0] in ("benchmarks", "tests"):
            found.append(f"{path}:{line}: the package must not import {module}")
        if unit in PURE_PYTHON and module.split(".")[0] == "torch":
            found.append(f"{path}:{line}: {unit} must work without torch")
        if target is None or target == unit:
            continue
        if unit in PURE_PYTHON and target not in PURE_PYTHON[unit]:
            found.append(f"{path}:{line}: {unit} must not import {module}")
        elif rank_of(target) >= rank_of(unit):
            found.append(f"{path}:{line}: {unit} must not import {module}: {target} is not below it")
    return found


def test_cpp_includes_follow_the_layers() -> None:
    found = [line for path in sources.cpp_files() for line in cpp_violations(path, sources.includes(path))]
    assert not found, "\n" + "\n".join(found)


def test_every_cpp_product_file_belongs_to_a_component() -> None:
    tops = ("backends/", "comm/", "compiler/", "passes/", "python/", "runtime/")
    homeless = [path for path in sources.cpp_files() if path.startswith(tops) and component_of(path) is None]
    assert not homeless, f"no row in CPP_LAYERS for: {homeless}"


def test_the_cpp_table_has_no_cycles() -> None:
    seen: set[str] = set()
    for component, allowed in CPP_LAYERS.items():
        assert set(allowed) <= seen, f"{component} names rows below it: {sorted(set(allowed) - seen)}"
        seen.add(component)


def test_gpu_kernels_know_no_element_wise_operation() -> None:
    """A new element-wise operation needs no line in that folder. compiler/kernel/emit emits it, and it counts as a long
    formula until it is named."""
    structural = {"kConstant", "kLoad", "kSumRows"}
    known = {
        f"{path}: {name}"
        for path in sources.cpp_files()
        if path.startswith("backends/nvptx/") and not path.endswith("/register_estimate.cpp")
        for name in re.findall(r"\b(?:PointwiseOp|Op)::(\w+)", sources.read(path))
        if name not in structural
    }
    assert not known, f"{sorted(known)}"


def test_python_imports_follow_the_order() -> None:
    paths = [path for path in sources.python_files() if path.startswith("python/agspeed/")]
    found = [line for path in paths for line in python_violations(path, sources.imports(path))]
    assert not found, "\n" + "\n".join(found)


def test_the_command_line_does_not_load_torch_at_import() -> None:
    paths = [
        path for path in sources.python_files() if path.startswith(("python/agspeed/cli/", "python/agspeed/__init__"))
    ]
    found = [
        f"{path}:{line}: {module} is loaded at import"
        for path in paths
        for line, module, at_import in sources.imports(path)
        if at_import and module.split(".")[0] == "torch"
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "header", "allowed"),
    [
        ("runtime/base/log.cpp", "runtime/base/settings.h", True),
        ("runtime/base/log.cpp", "runtime/program.h", False),
        ("runtime/executor.cpp", "torch/torch.h", False),
        ("runtime/aten/call.cpp", "ATen/core/dispatch/Dispatcher.h", True),
        ("runtime/autograd/node.cpp", "torch/csrc/autograd/function.h", True),
        ("runtime/autograd/node.cpp", "torch/csrc/autograd/python_variable.h", False),
        ("runtime/autograd/node.cpp", "torch/csrc/utils/pybind.h", False),
        ("runtime/autograd/node.cpp", "Python.h", False),
        ("compiler/graph/graph.cpp", "mlir/IR/Builders.h", False),
        ("compiler/kernel/emit.cpp", "llvm/IR/Module.h", True),
        ("runtime/executor.cpp", "compiler/graph/graph.h", False),
        ("passes/graph/fuse.cpp", "tests/helpers.h", False),
        ("runtime/memory/arena.cpp", "sqlite3.h", False),
        ("comm/world/world.cpp", "torch/torch.h", False),
        ("comm/c10d/work.h", "comm/api.h", True),
        ("comm/c10d/work.h", "comm/world/world.h", False),
        ("python/csrc/bind_network.cpp", "comm/topology/interfaces.h", False),
        ("tests/runtime/x_test.cpp", "torch/torch.h", True),
    ],
)
def test_an_include_is_judged_by_the_tables(path: str, header: str, allowed: bool) -> None:
    assert (cpp_violations(path, [(1, header)]) == []) is allowed


@pytest.mark.parametrize(
    ("path", "module", "allowed"),
    [
        ("python/agspeed/config/resolve.py", "agspeed.errors.UserError", True),
        ("python/agspeed/native.py", "agspeed._native", True),
        ("python/agspeed/native.py", "agspeed.frontend.api", False),
        ("python/agspeed/frontend/api.py", "agspeed.tuning.gate.check", True),
        ("python/agspeed/frontend/api.py", "agspeed.optimize", False),
        ("python/agspeed/reporting/html/page.py", "torch", False),
        ("python/agspeed/reporting/html/page.py", "agspeed.tuning.gate.check", False),
        ("python/agspeed/cli/doctor.py", "agspeed.optimize", True),
        ("python/agspeed/backends/aot.py", "tests.lint.sources", False),
        ("python/agspeed/novelty/x.py", "os", False),
    ],
)
def test_an_import_is_judged_by_the_order(path: str, module: str, allowed: bool) -> None:
    assert (python_violations(path, [(1, module, True)]) == []) is allowed

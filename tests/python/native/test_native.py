# SPDX-License-Identifier: Apache-2.0
"""Loads the extension, and compiles and runs Executables."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native, native_files
from agspeed.errors import UserError
from agspeed.graph_spec.export import export
from tests.python.native.regions import trace

pytestmark = pytest.mark.smoke


@pytest.fixture(autouse=True)
def _fresh_cache() -> Any:
    yield
    native._load.cache_clear()


def test_loaded_and_described() -> None:
    module = native.load()
    assert module is not None and native.why_missing() == ""
    assert module.build_info()["torch"] == torch.__version__


def test_a_torch_without_an_extension_is_refused_with_the_list_of_those_that_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_files, "extensions", lambda: {(2, 11): Path("a.so"), (2, 15): Path("b.so")})
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    native._load.cache_clear()
    assert native.load() is None
    sentence = native.why_missing()
    assert "torch 2.11 and 2.15" in sentence and "2.99.0" in sentence and 'pip install "torch==2.15.*"' in sentence


def test_an_extension_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "_native_torch299.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(native_files, "extensions", lambda: {(2, 99): broken})
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.delitem(sys.modules, "agspeed._native", raising=False)
    native._load.cache_clear()
    assert native.load() is None
    assert broken.name in native.why_missing() and "make build" in native.why_missing()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2.15.0+cu132", (2, 15)), ("2.16.0a0+git1", (2, 16)), ("3.1", (3, 1)), ("unknown", (0, 0))],
)
def test_a_release_is_two_numbers(text: str, expected: tuple[int, int]) -> None:
    assert native_files.release(text) == expected


def test_a_missing_extension_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_files, "extensions", dict)
    native._load.cache_clear()
    assert native.load() is None
    assert "not built" in native.why_missing()


def test_a_missing_torch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_torch(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    native._load.cache_clear()
    assert native.load() is None
    assert "needs PyTorch" in native.why_missing()


def test_compile_run_and_stats() -> None:
    x = torch.randn(5, 8)
    graph = trace(lambda x: (torch.relu(x) + 1,), [x]).graphs["forward"]
    module = native.load()
    assert module is not None
    executable = module.compile({"forward": export(graph, lift_constants=False).to_json()}, {})
    torch.testing.assert_close(executable.run("forward", [x]), [torch.relu(x) + 1])
    stats = executable.stats()
    assert stats["compiled_operators"] == 2 and stats["kernels"] == 1 and stats["native_share"] == 1.0
    with pytest.raises(UserError, match='no entry "step"'):
        executable.run("step", [x])
    with pytest.raises(UserError, match="input 0 is f64"):
        executable.run("forward", [x.double()])


def test_bad_graphs_and_options_are_user_errors() -> None:
    module = native.load()
    assert module is not None
    with pytest.raises(UserError):
        module.compile({"forward": "{not json"}, {})
    with pytest.raises(UserError, match="'taget'"):
        module.compile({}, {"taget": "cpu"})


def test_a_kernel_pass_is_disabled_by_its_name(tmp_path: Path) -> None:
    x = torch.randn(5, 8)
    graph = trace(lambda x: (torch.tanh(x),), [x]).graphs["forward"]
    module = native.load()
    assert module is not None
    options = {"disabled_passes": ["expand-math"], "dump_dir": str(tmp_path)}
    executable = module.compile({"forward": export(graph, lift_constants=False).to_json()}, options)
    torch.testing.assert_close(executable.run("forward", [x]), [torch.tanh(x)])
    assert list(tmp_path.glob("*-math-to-libm.mlir")) and not list(tmp_path.glob("*-expand-math.mlir"))


@pytest.mark.parametrize("name", ["ag-expand-math", "frobnicate", "fuse-pointwise", "math-to-libm"])
def test_a_pass_that_cannot_be_disabled_is_a_user_error(name: str) -> None:
    module = native.load()
    assert module is not None
    passes = "dce, cse, join-slices, reorder-joins, turn-images, gradient-stages, expand-math"
    with pytest.raises(UserError, match=f'"{name}".*can.* are {passes}'):
        module.compile({}, {"disabled_passes": [name]})

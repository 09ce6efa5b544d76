# SPDX-License-Identifier: Apache-2.0
"""The ways to look at native code: profiler, instructions with reasons, dumps, the map for perf, the listing."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.profiler import ProfilerActivity, profile

from agspeed import files, native
from agspeed.backends import CompileOptions, candidate, native_dump, perf_map
from agspeed.backends.joint import fake_inputs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

_KERNEL = re.compile(r"ag_kernel_\w+_[0-9a-f]{16}$")


@pytest.fixture(autouse=True)
def _without_what_dynamo_knows() -> None:
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * 2


def compiled(options: CompileOptions | None = None) -> tuple[nn.Module, list[Any]]:
    """Returns a module whose graph runs natively, and a list to which the runner will be added."""
    runners: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        runners.append(candidate("native").compile(gm, fake_inputs(gm), options or CompileOptions(num_threads=1)))
        return runners[-1]

    return torch.compile(Net(), backend=backend, dynamic=False), runners


def step(model: nn.Module) -> None:
    model(torch.ones(4, 8)).sum().backward()


def test_the_profiler_shows_kernels_by_name_inside_their_runs() -> None:
    model, runners = compiled()
    step(model)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step(model)
    step(model)  # without a profiler again
    events = profiler.events()
    assert events is not None
    found = [event for event in events if _KERNEL.match(event.name)]
    executable = runners[0]._executable
    expected = [each["name"] for entry in ("forward", "backward") for each in executable.instructions(entry)]
    assert [event.name for event in found] == [name for name in expected if _KERNEL.match(name)] and len(found) >= 2
    assert {event.cpu_parent.name for event in found} == {"agspeed::forward", "agspeed::backward"}
    products = [event for event in events if event.name == "aten::addmm"]
    assert [event.cpu_parent.name for event in products] == ["agspeed::forward"]
    assert "AgspeedRegionForward" in {event.name for event in events}


def test_each_call_keeps_the_reason_why_it_is_one() -> None:
    model, runners = compiled()
    step(model)
    forward = runners[0]._executable.instructions("forward")
    calls = {each["name"]: each for each in forward if each["kind"] == "call"}
    assert calls["aten.addmm.default"]["reason"] == "it has no native form"
    assert calls["aten.addmm.default"]["results"] == "f32[4,8]" and calls["aten.addmm.default"]["origin"] == "addmm"
    assert all(each["reason"] for each in calls.values())
    [kernel] = [each for each in forward if each["kind"] == "kernel"]
    assert kernel["name"].startswith("ag_kernel_tanh_mul_") and "tanh" in kernel["origin"]


def test_the_listing_shows_instructions_and_the_operations_of_kernels() -> None:
    model, runners = compiled()
    step(model)
    lines = runners[0].generated.splitlines()
    assert lines[0] == "forward" and "backward" in lines
    [call] = [line for line in lines if line.startswith("  call aten.addmm.default")]
    assert call == "  call aten.addmm.default -> f32[4,8]  # addmm; a call because it has no native form"
    name = next(line for line in lines if _KERNEL.match(line))
    assert f"  kernel {name}" in runners[0].generated and lines[lines.index(name) + 1].startswith("cluster rank")


def test_a_dump_has_all_stages_in_a_private_folder_for_each_graph(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "dump"
    for _ in range(2):  # the second compile finds its kernels in the cache, and the same folder
        torch._dynamo.reset()
        model, _ = compiled(CompileOptions(1, cache_dir=str(tmp_path / "cache"), dump_dir=str(folder)))
        step(model)
        [graph] = folder.iterdir()
        assert re.fullmatch(r"graph-[0-9a-f]{12}", graph.name)
        names = {path.name for path in graph.iterdir()}
        for entry in ("forward", "backward"):
            wanted = ("fx.txt", "spec.json", "0-import.ag", "6-fuse-pointwise.ag", "8-plan-releases.ag", "timings.txt")
            assert {f"{entry}-{name}" for name in wanted} <= names
        kernels = {name.partition(".")[0] for name in names if name.startswith("ag_kernel_")}
        stages = ("0-emit.mlir", "1-expand-math.mlir", "3-lower-to-llvm.mlir", "timings.txt", "ll", "s", "o")
        assert kernels and {f"{kernel}.{stage}" for kernel in kernels for stage in stages} <= names
        assert "torch.ops.aten.tanh" in (graph / "forward-fx.txt").read_text(encoding="utf-8")
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in graph.iterdir())
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (folder.parent, folder, graph))
        for path in graph.iterdir():
            path.unlink()


@pytest.mark.parametrize("kind", ["a link", "open to others"])
def test_a_folder_that_others_may_have_made_is_not_written(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    specs = {"forward": "{}"}
    [name] = _dumped(tmp_path / "first", specs)
    victim, second = tmp_path / "victim", tmp_path / "second"
    second.mkdir()
    victim.mkdir(mode=0o700)
    if kind == "a link":
        (second / name).symlink_to(victim)
    else:
        (second / name).mkdir()
        (second / name).chmod(0o777)
    assert native_dump.begin(str(second), {"forward": _graph()}, specs) == ""
    assert not list(victim.iterdir()) and not list((second / name).iterdir())
    assert "graphs are not dumped" in caplog.text and name in caplog.text


def _graph() -> fx.GraphModule:
    return fx.symbolic_trace(nn.ReLU())


def _dumped(folder: Path, specs: dict[str, str]) -> list[str]:
    assert native_dump.begin(str(folder), {"forward": _graph()}, specs)
    return [path.name for path in folder.iterdir()]


def test_a_dump_that_cannot_be_written_is_a_warning_and_compiling_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    model, runners = compiled(CompileOptions(1, dump_dir=str(blocked / "dump")))
    step(model)
    assert runners and "AGSPEED_DUMP" in caplog.text and "cannot be written" in caplog.text


def test_perf_finds_kernels_by_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = tmp_path / "perf.map"
    real = files.append
    monkeypatch.setattr(files, "append", lambda path: real(written) if "perf-" in str(path) else real(path))
    model, runners = compiled(CompileOptions(1, perf_map=True))
    step(model)
    kernels = {each["name"]: each for each in runners[0]._executable.kernels()}
    lines = [line.split(" ") for line in written.read_text(encoding="utf-8").splitlines()]
    assert kernels and {name for _, _, name in lines} == set(kernels)
    for start, size, name in lines:
        assert int(start, 16) == kernels[name]["address"] > 0 and int(size, 16) == kernels[name]["bytes"] > 0
        assert _KERNEL.match(name)


def test_the_map_for_perf_has_the_name_that_perf_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def refuse(path: str) -> Any:
        opened.append(path)
        raise PermissionError(1, "no", path)

    monkeypatch.setattr(files, "append", refuse)
    perf_map.add([{"name": "k", "text": "", "address": 16, "bytes": 4}])  # a warning, not an error
    assert opened == [f"/tmp/perf-{os.getpid()}.map"]

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries out the wheel in dist/ under the running Python's torch: size, exported symbols, libraries needed, build paths,
imports in every order, and a model that is tuned and trained.

    python .ci/check_wheel.py dist

The wheel is unpacked beside links to the packages of the running interpreter, as an installation would be. The system's
LLVM is hidden during the checks if this user may hide it, which takes root. Prints one line per check and exits with 1
if one failed. Uses the standard library only.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_MEGABYTES, MAX_PLUGIN_MEGABYTES = 60, 6
_OF_THE_SYSTEM = r"lib(gomp|stdc\+\+|gcc_s|m|c|z|zstd|sqlite3|dl|pthread)\.so|ld-linux"
COMPILER_MAY_NEED = re.compile(_OF_THE_SYSTEM)
EXTENSION_MAY_NEED = re.compile(rf"{_OF_THE_SYSTEM}|lib(agspeed_compiler|c10|torch|torch_cpu|torch_python)\.so")

COMPILE_AND_RUN = """
import agspeed, json
from agspeed import _native
tensor = {"dtype": "f32", "shape": [64], "stride": [1], "device": "cpu", "requires_grad": False}
def call(name, target, operand):
    return {"name": name, "op": "call", "target": target, "args": [{"ref": operand}], "kwargs": {}, "type": tensor}
nodes = [{"name": "x", "op": "input", "type": tensor},
         call("e", "aten.exp.default", "x"),
         call("y", "aten.tanh.default", "e"),
         {"name": "output", "op": "output", "args": [[{"ref": "y"}]]}]
spec = json.dumps({"version": 1, "symbols": [], "nodes": nodes})
executable = _native.compile({"forward": spec}, {})
import torch
x = torch.randn(64)
torch.testing.assert_close(executable.run("forward", [x])[0], x.exp().tanh())
assert executable.stats()["kernels"] == 1, executable.stats()
foreign = [line for line in open("/proc/self/maps") if "libLLVM" in line or "libMLIR" in line]
assert not foreign, foreign
"""
BACKEND_WITHOUT_IMPORT = """
from torch import distributed
distributed.init_process_group("agspeed", store=distributed.HashStore(), rank=0, world_size=1)
"""
TUNE_AND_TRAIN = """
import os, torch, agspeed
torch.manual_seed(0)
x = torch.randn(32, 16)
def train(most_steps, optimize):
    torch.manual_seed(1)
    layers = torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)
    model = torch.nn.Sequential(*layers)
    if optimize:
        os.environ["AGSPEED_CACHE_DIR"] = os.path.abspath("cache")
        agspeed.optimize(model, mode="max", backends=["aot", "native"], strict=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    while steps < most_steps and not (optimize and steps > 10 and agspeed.status(model) != "tuning"):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
    return model, steps
tuned, steps = train(20_000, True)
assert agspeed.status(tuned) != "tuning", agspeed.status(tuned)
plans = agspeed.report(tuned).to_dict()["plans"]
states = {plan["name"]: plan["state"] for plan in plans}
assert set(states) >= {"aot", "native"} and set(states.values()) <= {"chosen", "slower"}, states
eager, _ = train(steps, False)
for ours, expected in zip(tuned.parameters(), eager.parameters(), strict=True):
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)
"""
SCENARIOS = {
    "agspeed before torch": "import agspeed._native, torch",
    "torch before agspeed": "import torch, agspeed._native",
    "beside Triton": "import triton._C.libtriton, agspeed._native, torch, triton",
    "after Triton and torch": "import torch, triton._C.libtriton, triton, agspeed._native",
    "the command line": "import agspeed.cli",
    "the backend without an import": BACKEND_WITHOUT_IMPORT,
    "compiles and runs a kernel": COMPILE_AND_RUN,
    "tunes and trains a model": TUNE_AND_TRAIN,
}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def size_is_small(wheel: Path) -> str | None:
    megabytes = wheel.stat().st_size / 1e6
    return None if megabytes < MAX_MEGABYTES else f"{megabytes:.1f} MB, limit {MAX_MEGABYTES}"


def exports_only_its_entry(extension: Path) -> str | None:
    return exports_beyond(extension, "PyInit__native")


def exports_beyond(library: Path, prefix: str) -> str | None:
    symbols = output("nm", "-D", "--defined-only", "--format=just-symbols", str(library)).split()
    foreign = [symbol for symbol in symbols if not symbol.startswith(prefix)]
    return f"{len(foreign)} more exports, such as {foreign[:3]}" if foreign or not symbols else None


def needs_beyond(library: Path, may_need: re.Pattern[str]) -> str | None:
    foreign = [name for name in re.findall(r"\[(.+)\]", _needed(library)) if not may_need.match(name)]
    return f"needs {foreign}" if foreign else None


def needs_no_llvm(extension: Path) -> str | None:
    return needs_beyond(extension, EXTENSION_MAY_NEED)


def finds_torch_beside_itself(extension: Path) -> str | None:
    paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.+)\]", output("readelf", "-d", str(extension)))
    return None if paths == ["$ORIGIN/lib:$ORIGIN/../torch/lib"] else f"run path {paths}"


def forgets_where_it_was_built(extension: Path) -> str | None:
    return "the build machine's path is inside" if str(ROOT).encode() in extension.read_bytes() else None


def compiler_stands_alone(library: Path) -> str | None:
    """Checks libagspeed_compiler.so: it exports compile() and configure() alone, and needs neither torch nor the
    system's LLVM. It contains LLVM's target for NVIDIA's GPUs, which an option of that target shows."""
    if b"nvptx-prec-divf32" not in library.read_bytes():
        return "LLVM's NVPTX target is not inside"
    return (
        exports_beyond(library, "_ZN7agspeed8compiler")
        or needs_beyond(library, COMPILER_MAY_NEED)
        or forgets_where_it_was_built(library)
    )


def plugin_stands_alone(plugin: Path) -> str | None:
    """Checks NCCL's plug-in: it is small, exports its tables only and needs the C library only."""
    megabytes, needed = plugin.stat().st_size / 1e6, re.findall(r"\[(.+)\]", _needed(plugin))
    if foreign := [name for name in needed if not re.match(r"lib(c|m)\.so|ld-linux", name)]:
        return f"needs {foreign}"
    if megabytes >= MAX_PLUGIN_MEGABYTES:
        return f"{megabytes:.1f} MB, limit {MAX_PLUGIN_MEGABYTES}"
    return exports_beyond(plugin, "ncclNetPlugin_v") or forgets_where_it_was_built(plugin)


def _needed(library: Path) -> str:
    return "\n".join(line for line in output("readelf", "-d", str(library)).splitlines() if "(NEEDED)" in line)


def unpack(wheel: Path, site: Path) -> Path:
    """Unpacks the wheel among links to the installed packages. Returns the package's folder."""
    zipfile.ZipFile(wheel).extractall(site)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith("agspeed") and not (site / package.name).exists():
            (site / package.name).symlink_to(package)
    return site / "agspeed"


def hiding_llvm() -> list[str]:
    """Returns a command prefix that hides the system's LLVM, or an empty list if this user may not hide it."""
    script = 'for d in /usr/lib/llvm-*; do mount -t tmpfs none $d || exit 1; done; exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
    allowed = os.geteuid() == 0 and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if allowed else []


def works(scenario: str, site: Path) -> str | None:
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n{scenario}"
    command = [*hiding_llvm(), sys.executable, "-I", "-S", "-c", code]
    result = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=300, check=False)
    return None if result.returncode == 0 else f"exit code {result.returncode}: {result.stderr.strip()[-600:]}"


def main() -> int:
    (wheel,) = Path(sys.argv[1]).glob("agspeed-*.whl")
    failed = 0

    def report(name: str, check: Callable[[], str | None]) -> None:
        nonlocal failed
        problem = check()
        failed += problem is not None
        print(f"{'ok  ' if problem is None else 'FAIL'} {name}{'' if problem is None else ': ' + problem}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        package = unpack(wheel, Path(folder))
        report(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB", lambda: size_is_small(wheel))
        for extension in sorted(package.glob("_native_torch*.so")):
            for check in (exports_only_its_entry, needs_no_llvm, finds_torch_beside_itself, forgets_where_it_was_built):
                name = f"{extension.name.split('.')[0]} {check.__name__.replace('_', ' ')}"
                report(name, lambda check=check, extension=extension: check(extension))
        report("compiler stands alone", lambda: compiler_stands_alone(package / "lib" / "libagspeed_compiler.so"))
        report("plug-in stands alone", lambda: plugin_stands_alone(package / "lib" / "libnccl-net-agspeed.so"))
        hidden = "hidden" if hiding_llvm() else "visible (hiding needs root)"
        print(f"--- torch {importlib.metadata.version('torch')}, LLVM of the system {hidden}")
        for name, scenario in SCENARIOS.items():
            report(name, lambda scenario=scenario: works(scenario, Path(folder)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""GPU kernels of whole training steps. The graphs of workloads are captured on the CPU, and their text is changed to
name a GPU. The resulting PTX assembles for each generation of GPUs without register spills.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from agspeed.backends import native
from agspeed.backends.base import CompileOptions
from agspeed.errors import UnsupportedError
from agspeed.graph_spec.export import export
from benchmarks import workloads

_ALL = os.environ.get("AG_TEST_THOROUGH") == "1"
BINARY = Path(__file__).parents[3] / "build" / "dev" / "tests" / "backends" / "ptx_test"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not BINARY.exists(), reason="ptx_test is not built")]


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graphs of a step of some workloads, or of all, with the first GPU as their device."""
    folder = tmp_path_factory.mktemp("specs")
    for name in workloads.names()[:: 1 if _ALL else 3]:
        capture(name, folder)
    return folder


def capture(name: str, folder: Path) -> None:
    def write(graphs: dict[str, fx.GraphModule], *rest: Any) -> Any:
        for entry, graph in graphs.items():
            text = export(graph, lift_constants=True).to_json()
            path = folder / f"{name}-{len(list(folder.iterdir()))}-{entry}.json"
            path.write_text(re.sub(r'("device"\s*:\s*)"cpu"', r'\1"cuda:0"', text), encoding="utf-8")
        raise UnsupportedError("only the graph is wanted")

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with pytest.raises(UnsupportedError), pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_compile", write)
            examples = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
            native.Native().compile(gm, examples, CompileOptions(num_threads=1))
        return gm.forward

    torch._dynamo.reset()
    training = workloads.load(name).build()
    for module in training.modules.values():
        module.compile(backend=backend)
    training.step(training.batches[0])
    torch._dynamo.reset()


@pytest.mark.parametrize("capability", ["sm_80", "sm_90", "sm_100"])
def test_the_kernels_of_workloads_assemble_without_spills(specs: Path, capability: str) -> None:
    command = [str(BINARY), f"--gtest_filter=*GraphsOfAFolderAssemble/{capability}"]
    environment = {**os.environ, "AG_GRAPH_SPECS": str(specs)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    if "SKIPPED" in done.stdout:
        pytest.skip("there is no ptxas, or LLVM has no NVPTX target")
    assert done.returncode == 0, f"{sorted(path.name for path in specs.iterdir())}\n{done.stdout[-6000:]}"

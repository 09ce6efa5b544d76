# SPDX-License-Identifier: Apache-2.0
"""The native candidate on CUDA tensors: forward and backward of a region, on a GPU that the host simulates.

The tests call the backward's entry directly. Torch's autograd engine would ask libtorch_cuda for a context first.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest
import torch
from torch import fx, nn

from tests.python.devices import host_gpu

pytestmark = pytest.mark.skipif(not host_gpu.LIBRARY.exists(), reason="libhost_gpu.so is not built")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


def train() -> dict[str, Any]:
    """Returns the largest differences of results and gradients from eager's on the CPU, over three steps."""
    torch.manual_seed(0)
    block = Block()
    runner, executable, names = _native_for_gpu(block, torch.randn(10, 24))
    parameters = dict(block.named_parameters())
    moved = {name: value.detach().to("cuda").requires_grad_() for name, value in parameters.items()}
    off = {"results": 0.0, "gradients": 0.0, "numbers": len(parameters), "kernels": executable.stats()["kernels"]}
    for _ in range(3):
        x, tangent = torch.randn(10, 24), torch.randn(10, 24)
        inputs = [x.to("cuda") if name is None else moved[name] for name in names]
        expected = block(x)
        [found] = runner(*inputs)
        assert found.is_cuda and found.grad_fn is not None
        off["results"] = max(off["results"], _off(found.detach(), expected.detach()))
        result, *saved = executable.run("forward", [value.detach() for value in inputs])
        assert torch.equal(result.cpu(), found.detach().cpu())
        gradients = executable.run("backward", [*saved, tangent.to("cuda")])
        wanted = torch.autograd.grad(expected, list(parameters.values()), tangent)
        for name, gradient in zip(parameters, wanted, strict=True):
            off["gradients"] = max(off["gradients"], _off(gradients[names.index(name)], gradient))
    return off


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.is_cuda
    return float((found.cpu() - expected).abs().max())


def _native_for_gpu(module: nn.Module, x: torch.Tensor) -> tuple[Any, Any, list[str | None]]:
    """Returns the runner, the code that it runs, and its arguments' names (None for the data). The graph is traced on
    the CPU, where fake tensors work, and compiled for the GPU."""
    from agspeed.backends import native
    from agspeed.backends.base import CompileOptions

    found: list[Any] = []
    owners = {id(value): name for name, value in module.named_parameters()}

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        found.extend([gm, [owners.get(id(value)) for value in inputs]])
        return gm.forward

    torch.compile(module, backend=backend)(x)
    gm, names = found
    export, compile_all = native.export, native._compile
    executables: list[Any] = []

    class Moved:
        def __init__(self, graph: fx.GraphModule, **keywords: Any) -> None:
            self._spec = export(graph, **keywords)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._spec, name)

        def to_json(self) -> str:
            return re.sub(r'("device"\s*:\s*)"cpu"', r'\1"cuda:0"', self._spec.to_json())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "export", Moved)
        patch.setattr(native, "_compile", lambda *args: executables.append(compile_all(*args)) or executables[-1])
        patch.setattr(native, "_home", lambda graphs: torch.device("cuda", 0))
        examples = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        runner = native.Native().compile(gm, examples, CompileOptions(num_threads=1))
    return runner, executables[-1], names


def lose() -> dict[str, Any]:
    """Returns the report and the error when the driver reports an illegal address at a launch of the forward."""
    block = Block()
    runner, _, names = _native_for_gpu(block, torch.randn(10, 24))
    parameters = dict(block.named_parameters())
    x = torch.randn(10, 24).to("cuda")
    inputs = [x if name is None else parameters[name].detach().to("cuda").requires_grad_() for name in names]
    reported: list[str] = []
    runner.watch(lambda error: reported.append(str(error)))
    ctypes.CDLL("libcuda.so.1").fakeCudaFail(b"cuLaunchKernel", 700, 0)
    with pytest.raises(RuntimeError) as raised:
        runner(*inputs)
    return {"reported": reported, "raised": str(raised.value)}


@pytest.mark.slow
def test_results_and_gradients_are_eagers() -> None:
    found = host_gpu.call("tests.python.native.test_on_gpu:train")
    assert found["kernels"] > 2 and found["numbers"] == 6, found
    assert found["results"] < 1e-5 and found["gradients"] < 1e-5, found


@pytest.mark.slow
def test_a_gpu_that_is_lost_in_a_forward_is_reported() -> None:
    found = host_gpu.call("tests.python.native.test_on_gpu:lose")
    assert "illegal memory access" in found["raised"], found
    assert found["reported"] == ["CUDA error: an illegal memory access was encountered"], found

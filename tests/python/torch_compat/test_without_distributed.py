# SPDX-License-Identifier: Apache-2.0
"""A torch that was built without torch.distributed: a model of one process is tuned and trains as eager does.

Such a build lacks the initialisers with which torch's extension makes its distributed parts. So the test removes them
before they are first called. The C++ code of such a build neither uses DTensor nor has operators for symmetric memory,
so the test replaces both by empty objects.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agspeed import native

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
_PROGRAM = """
import importlib.abc, importlib.machinery, json, sys, time, types

class WithoutDistributed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch._C":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module
        def run_and_remove(module):
            run(module)
            for initialiser in ("_c10d_init", "_rpc_init", "_dist_autograd_init", "_faulty_agent_init"):
                if hasattr(module, initialiser):
                    delattr(module, initialiser)
        spec.loader.exec_module = run_and_remove
        return spec

sys.meta_path.insert(0, WithoutDistributed())
import torch
assert not torch.distributed.is_available()
torch.ops.symm_mem = types.SimpleNamespace()
sys.modules["torch.distributed.tensor"] = types.ModuleType("torch.distributed.tensor")
sys.modules["torch.distributed.tensor"].DTensor = type("DTensor", (), {})
try:
    import torch._C._distributed_c10d
    raise AssertionError("torch.distributed is there")
except ImportError:
    pass

import agspeed

@torch.compiler.assume_constant_result
def slow_where_not_captured(seconds):
    time.sleep(seconds)
    return 1.0

class Slow(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x) * slow_where_not_captured(0.01)

def trained(keywords):
    torch.manual_seed(5)
    model = Slow(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if keywords is not None:
        agspeed.optimize(model, **keywords)
    for step in range(400):
        model(torch.ones(4, 8) + step % 3).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model

model, eager = trained(json.loads(sys.argv[1])), trained(None)
pairs = zip(model.parameters(), eager.parameters(), strict=True)
report = agspeed.report(model).to_dict()
print(json.dumps({
    "status": report["status"],
    "plans": [plan["name"] for plan in report["plans"]],
    "differs_by": max(float((a - b).detach().abs().max()) for a, b in pairs),
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["max", "deterministic"])
def test_one_process_is_tuned_and_trains_as_eager_does(mode: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    keywords = {"mode": mode, "backends": ["aot"], "cache_dir": str(tmp_path), "strict": True}
    command = [sys.executable, "-c", _PROGRAM, json.dumps(keywords)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"]["state"] == "tuned", found
    assert found["plans"] == ["eager", "aot"]
    assert found["differs_by"] == 0, "aot runs eager's operators"

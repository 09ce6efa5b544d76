# SPDX-License-Identifier: Apache-2.0
"""Scripts that do not know agspeed run over its backend, with tuned buckets, and reach the same weights as over
Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agspeed import native
from tests.python.support.installed import installed

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")

# Each script calls tell() to write the values that tests check: weights, and the backend's names in torch.
TELL = """
import json
from torch import distributed as ranks
def tell(model, path):
    world = ranks.group.WORLD
    if ranks.get_rank() == 0:
        weights = [value.flatten().tolist() for value in model.state_dict().values()]
        kinds = [type(world._get_backend(torch.device("cpu"))).__module__, ranks.get_backend(), str(world.size())]
        with open(path, "w") as file:
            json.dump({"weights": weights, "kinds": kinds}, file)
"""
TORCHRUN = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group({backend})
if dist.get_backend() == "gloo":
    dist.monitored_barrier()
side = dist.new_group(ranks=[0, 1])
torch.manual_seed(7)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)), process_group=side)
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
tell(model, sys.argv[1])
dist.destroy_process_group()
"""
ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
data = DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=4)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
for (batch,) in data:
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
tell(model, sys.argv[1])
accelerator.end_training()
"""
# Leaves early, because Gloo of torch 2.15 sometimes calls std::terminate while the interpreter ends.
LEAVE = """
import os
os._exit(0)
"""


def trained(folder: Path, script: str, stands_in: bool, **environment: str) -> dict[str, Any]:
    """Returns the output of rank 0 of two after training with `script` under torchrun."""
    program, results = folder / "train.py", folder / f"results-{stands_in}-{len(environment)}.json"
    program.write_text("import torch\n" + TELL + script + ("" if stands_in else LEAVE))
    env = {**os.environ, "OMP_NUM_THREADS": "1", **installed(folder), **environment}
    env.pop("AGSPEED_AS", None)
    if stands_in:
        env["AGSPEED_AS"] = "gloo"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*launch, str(program), str(results)], capture_output=True, text=True, timeout=240, env=env, cwd=folder
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(results.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "name"),
    [
        (TORCHRUN.format(backend='"gloo"'), "gloo"),
        pytest.param(TORCHRUN.format(backend='"cpu:gloo"'), "cpu:gloo", marks=pytest.mark.thorough),
        (ACCELERATE, "gloo"),
    ],
    ids=["torchrun", "by device", "accelerate"],
)
def test_an_unchanged_script_trains_to_the_same_weights(tmp_path: Path, script: str, name: str) -> None:
    over_gloo, ours = (trained(tmp_path, script, stands_in) for stands_in in (False, True))
    assert over_gloo["kinds"] == ["torch.distributed.distributed_c10d", name, "2"]
    assert ours["kinds"] == ["agspeed._native", name, "2"]
    assert ours["weights"] == over_gloo["weights"]  # two ranks: every order of a sum gives the same result


@pytest.mark.slow
def test_an_unchanged_script_has_its_buckets_tuned(tmp_path: Path) -> None:
    script = TORCHRUN.format(backend='"gloo"').replace("range(5)", "range(40)")
    plain = trained(tmp_path, script, stands_in=True)
    tuned = trained(
        tmp_path,
        script,
        stands_in=True,
        AGSPEED_DDP="tune",
        AGSPEED_MODE="max",
        AGSPEED_REPORT=str(tmp_path / "report.json"),
        AGSPEED_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert tuned["weights"] == plain["weights"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["group"]["together"]["own_buckets"] == {"first_bytes": 1 << 20, "rest_bytes": 25 << 20}
    assert report["regions"] == [], "nothing is captured"


ASK = """
import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d
dist.init_process_group({backend}, store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__module__.split(".")[0], dist.get_backend())
"""


def asked(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **installed(folder), **environment}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=env, cwd=folder
    )


def test_no_backend_on_a_machine_without_accelerator_is_ours(tmp_path: Path) -> None:
    run = asked(tmp_path, ASK.format(backend="None"), AGSPEED_AS="gloo")
    assert (run.returncode, run.stdout) == (0, "agspeed undefined\n"), run.stderr


def test_the_settings_file_asks_for_it_too(tmp_path: Path) -> None:
    (tmp_path / "agspeed.toml").write_text('stands_in_for = "gloo"\n')
    run = asked(tmp_path, ASK.format(backend='"gloo"'))
    assert (run.returncode, run.stdout) == (0, "agspeed gloo\n"), run.stderr


def test_a_wrong_word_leaves_gloo_and_says_so(tmp_path: Path) -> None:
    run = asked(tmp_path, ASK.format(backend='"gloo"'), AGSPEED_AS="glue")
    assert (run.returncode, run.stdout) == (0, "torch gloo\n"), run.stderr
    assert "AGSPEED_AS" in run.stderr
    assert "gloo" in run.stderr


def test_other_backends_are_left_alone(tmp_path: Path) -> None:
    install = "from agspeed.distributed import install_as_default\ninstall_as_default()\n"
    program = "import torch.testing._internal.distributed.fake_pg\n" + install + ASK
    run = asked(tmp_path, program.format(backend='"fake"'))
    assert run.returncode == 0, run.stderr
    assert run.stdout == "torch fake\n"


def test_nothing_is_loaded_without_a_request(tmp_path: Path) -> None:
    run = asked(tmp_path, "import sys, torch\nprint([name for name in sys.modules if name.startswith('agspeed')])")
    assert run.returncode == 0, run.stderr
    assert "agspeed.distributed'" in run.stdout
    assert "agspeed.config'" not in run.stdout
    assert "stand_in" not in run.stdout
    assert "frontend" not in run.stdout

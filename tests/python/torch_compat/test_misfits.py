# SPDX-License-Identifier: Apache-2.0
"""A torch that lacks one name: features that need it are off, a message says so, and the rest works as before.

Each case trains in a process of its own, which removes the name before it first uses agspeed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import agspeed
from agspeed import log, native
from agspeed.errors import UnsupportedError
from agspeed.frontend import startup
from agspeed.frontend.earned_start import EarnedStart
from agspeed.torch_compat import misfits, probe
from tests.python.support.pairs import every, first_of, thorough

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")
PROGRAM = Path(__file__).with_name("training_with_a_part_gone.py")
ALL_LOSE = {
    # keep-sorted
    "aot_autograd": "torch._functorch.aot_autograd.aot_module_simplified",
    "autograd": "torch._C._will_engine_execute_node",
    "checkpoint": "torch._higher_order_ops.wrap.uid",
    "dynamo": "torch._dynamo.pgo.auto_dynamic",
    "graphs": "torch.fx.Node._rename",
    "modes": "torch.utils._python_dispatch._disable_current_modes",
    "modules": "torch.fx._symbolic_trace.is_fx_symbolic_tracing",
    "operators": "torch._library.custom_ops.OPDEFS",
    "shapes": "torch.utils._sympy.functions.ModularIndexing",
}
RANKS_LOSE = {
    # keep-sorted
    "c10d": ("torch._C._distributed_c10d.AllgatherOptions", "ddp"),
    "ddp": ("torch.distributed._composable.contract._get_registry", "ddp"),
    "fsdp": ("torch.distributed.fsdp.FSDPModule._get_fsdp_state", "fully_shard"),
}
INDUCTOR = "torch._inductor.cpu_vec_isa.VecISA._avx_py_load"


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    log._seen.clear()
    torch._dynamo.reset()


def train_without(name: str, kind: str = "plain", **keywords: Any) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(PROGRAM), name, kind, json.dumps(keywords)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check_that_all_is_eager(found: dict[str, Any], part: str, name: str) -> None:
    sentence = f"part `{part}`: torch {probe.version()} has no {name}; nothing is tuned"
    assert found["differs_by"] == 0, "eager's own bits"
    assert len(found["warnings"]) == 1 and sentence in found["warnings"][0], found["warnings"]
    assert "pip install" in found["warnings"][0]
    assert found["status"].startswith("eager: ") and sentence in found["status"]
    assert sentence in found["report"]
    assert found["strict"].startswith("UnsupportedError: ") and sentence in found["strict"], found["strict"]


def test_each_part_has_a_case() -> None:
    others = {"inductor", "job_store", "log_messages", "memory", "partitioner", "wrong_captures"}
    assert {*ALL_LOSE, *RANKS_LOSE, *others} == set(probe.PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("part", every(9, [name for name in ALL_LOSE if name != "dynamo"]))
def test_without_a_part_that_all_need_models_train_eagerly(part: str, tmp_path: Path) -> None:
    found = train_without(ALL_LOSE[part], cache_dir=str(tmp_path))
    check_that_all_is_eager(found, part, ALL_LOSE[part])


@pytest.mark.slow
@pytest.mark.parametrize("mode", first_of(["auto", "max"], 1))
def test_without_dynamo_as_expected_models_train_eagerly_in_each_mode(mode: str, tmp_path: Path) -> None:
    found = train_without(ALL_LOSE["dynamo"], mode=mode, cache_dir=str(tmp_path))
    check_that_all_is_eager(found, "dynamo", ALL_LOSE["dynamo"])


@pytest.mark.slow
@pytest.mark.parametrize("part", every(3, list(RANKS_LOSE)))
def test_without_a_part_that_ranks_need_their_models_train_eagerly(part: str, tmp_path: Path) -> None:
    name, kind = RANKS_LOSE[part]
    check_that_all_is_eager(train_without(name, kind, cache_dir=str(tmp_path)), part, name)


@pytest.mark.slow
@pytest.mark.parametrize("part", [thorough(part) for part in RANKS_LOSE])
def test_a_model_of_one_process_does_not_need_what_ranks_need(part: str, tmp_path: Path) -> None:
    name, _ = RANKS_LOSE[part]
    found = train_without(name, cache_dir=str(tmp_path), mode="deterministic", backends=["aot"])
    assert found["status"].startswith("tuned") and not found["warnings"] and found["strict"] == ""
    assert found["differs_by"] == 0


@pytest.mark.slow
def test_without_inductor_as_expected_the_other_candidates_work(tmp_path: Path) -> None:
    found = train_without(INDUCTOR, cache_dir=str(tmp_path), mode="deterministic", backends=["inductor", "aot"])
    sentence = f"part `inductor`: torch {probe.version()} has no {INDUCTOR}; the candidates inductor"
    assert found["plans"]["aot"][0] == "chosen" and found["plans"]["inductor"][0] == "skipped"
    assert sentence in found["plans"]["inductor"][1]
    assert len(found["warnings"]) == 1 and sentence in found["warnings"][0] and "pip install" in found["warnings"][0]
    assert found["status"].startswith("tuned") and sentence in found["status"] and sentence in found["report"]
    assert any(sentence in note for note in found["report_warnings"])
    assert found["strict"].startswith("UnsupportedError: ") and sentence in found["strict"]
    assert found["differs_by"] == 0, "aot runs eager's operators"


@pytest.mark.parametrize("strict", [False, True])
def test_without_an_extension_for_this_torch_models_train_eagerly(
    strict: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = 'the native extension was built for torch 2.11, but 2.99.0 is installed: `pip install "torch==2.11.*"`'
    monkeypatch.setattr(misfits, "extension_for", lambda version: (None, sentence))
    models = [torch.nn.Linear(4, 2) for _ in range(2)]
    if strict:
        with pytest.raises(UnsupportedError, match=r"was built for torch 2\.11"):
            agspeed.optimize(models[0], strict=True)
        assert agspeed.status(models[0]).reason == "not optimized"
        return
    for model in models:
        assert agspeed.optimize(model) is model
        model(torch.ones(3, 4)).sum().backward()
    warned = [record for record in caplog.records if sentence in record.getMessage()]
    assert [record.levelname for record in warned] == ["WARNING"]
    assert agspeed.status(models[1]) == "eager" and sentence in agspeed.status(models[1]).reason
    assert sentence in agspeed.report(models[1]).to_dict()["status"]["reason"]


@pytest.mark.parametrize("strict", [False, True])
def test_an_extension_that_cannot_be_loaded_is_reported_once_it_is_needed(
    strict: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    sentence = "the native extension cannot be loaded into torch 2.99.0: install the wheel again (a symbol is missing)."
    monkeypatch.setattr(native, "_load", lambda: (None, sentence))
    monkeypatch.setattr(EarnedStart, "is_due", lambda earned: True)
    model = agspeed.optimize(torch.nn.Linear(4, 2), strict=strict, cache_dir=tmp_path)
    with pytest.raises(UnsupportedError, match="a symbol is missing") if strict else contextlib.nullcontext():
        model(torch.ones(3, 4)).sum().backward()
    model(torch.ones(3, 4)).sum().backward()
    assert agspeed.status(model) == "eager" and sentence in agspeed.status(model).reason
    assert sentence in agspeed.report(model).to_dict()["status"]["reason"]
    warned = [record for record in caplog.records if sentence in record.getMessage() and record.levelname == "WARNING"]
    assert len(warned) == (0 if strict else 1)


def test_the_backend_of_torch_compile_runs_the_graph_where_nothing_can_be_tuned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "why_unusable", lambda **_: "part `dynamo`: torch 2.99.0 has no thing")
    model = torch.nn.Linear(4, 2)
    compiled = torch.compile(model, backend="agspeed")
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3, 4)), model(torch.ones(3, 4)))
    assert [record.levelname for record in caplog.records if "has no thing" in record.getMessage()] == ["WARNING"]


@pytest.mark.thorough
def test_who_does_not_ask_for_inductor_hears_nothing_of_it(tmp_path: Path) -> None:
    found = train_without(INDUCTOR, cache_dir=str(tmp_path), mode="deterministic", backends=["aot"])
    assert found["status"].startswith("tuned") and "part `" not in found["status"]
    assert not found["warnings"] and not found["report_warnings"] and found["strict"] == ""


@pytest.mark.thorough
def test_without_what_cuda_graphs_need_a_model_on_the_cpu_is_tuned(tmp_path: Path) -> None:
    name = "torch._C._to_dlpack"
    found = train_without(name, cache_dir=str(tmp_path), mode="deterministic", backends=["aot"])
    assert found["status"].startswith("tuned") and not found["warnings"] and found["differs_by"] == 0


def test_what_cuda_graphs_need_is_asked_for_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "misfit", lambda parts: "part `memory`" if "memory" in parts else None)
    assert misfits.of_candidates(None, "cuda").startswith("part `memory`: `pip install")
    assert misfits.of_candidates(None, "cpu") == ""
    assert misfits.of_candidates(["aot"], "cuda") == ""

# SPDX-License-Identifier: Apache-2.0
"""Ray's TorchTrainer trains over the backend "agspeed", and Horovod's API finds the ranks there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed import native
from tests.python.horovod.ray import cluster, programs
from tests.python.support.installed import installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(cluster.WHY_NONE is not None, reason=cluster.WHY_NONE or "-"),
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]


@pytest.fixture(scope="module", autouse=True)
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cluster.cluster(installed(tmp_path_factory.mktemp("installed"))):
        yield


def _loop(config: dict[str, Any]) -> None:
    """Trains at each of Ray's workers; does not import agspeed before the group exists."""
    by_ddp = programs.trained_by_ddp()
    found = {"backend": torch.distributed.get_backend(), "by_ddp": by_ddp, "place": programs.place()["place"]}
    file = Path(config["folder"]) / f"rank-{torch.distributed.get_rank()}.json"
    file.write_text(json.dumps(found), encoding="utf-8")


def test_workers_train_to_the_weights_of_one_process(tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        _loop,
        train_loop_config={"folder": str(tmp_path)},
        torch_config=TorchConfig(backend="agspeed"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    trainer.fit()
    for rank in range(2):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text(encoding="utf-8"))
        assert found["backend"] == "agspeed" and found["place"] == [rank, 2, rank, 2, 0, 1]
        for ours, theirs in zip(found["by_ddp"], programs.trained_alone(), strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))

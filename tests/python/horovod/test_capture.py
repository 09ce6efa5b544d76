# SPDX-License-Identifier: Apache-2.0
"""Operations within a model that Dynamo captures, through agspeed.optimize() and torch.compile()."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.python.distributed.ranks import Ranks
from tests.python.horovod import capture_programs

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-")


def test_operations_within_a_captured_model_are_called_without_a_warning_of_our_code(tmp_path: Path) -> None:
    with Ranks(2, timeout_s=240) as ranks:
        answers = ranks.run(capture_programs.captured, tmp_path)
    for found in answers:
        torch.testing.assert_close(found["captured"], found["plain"], rtol=1e-5, atol=1e-6)
        assert found["graphs"] > 0
        assert not [text for text in found["warned"] if "Dynamo" in text or "agspeed" in text]


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("backend", ["aot", "native"])
def test_statistics_of_all_ranks_are_those_of_eager(tmp_path: Path, backend: str, momentum: float | None) -> None:
    with Ranks(2, timeout_s=240) as ranks:
        for answer in ranks.run(capture_programs.optimized, tmp_path, backend=backend, momentum=momentum):
            assert answer["status"].startswith("tuned"), answer["status"]
            torch.testing.assert_close(answer["optimized"], answer["plain"], rtol=1e-4, atol=1e-5)

# SPDX-License-Identifier: Apache-2.0
"""Operations within a model that Dynamo captures, as agspeed.optimize() and torch.compile() have it."""

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

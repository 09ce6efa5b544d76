# SPDX-License-Identifier: Apache-2.0
"""The gradients on which codecs are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agspeed.distributed.codecs import sample_gradients
from agspeed.errors import UserError


@pytest.mark.parametrize(
    "content",
    [torch.ones(2, 3), [torch.ones(6)], {"a": torch.ones(4), "b": {"c": torch.ones(2).bfloat16(), "d": 3}}],
    ids=["tensor", "list", "dict"],
)
def test_tensors_of_a_file_are_found(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "gradients-1.pt")
    found = sample_gradients.of_file(str(tmp_path / "gradients-{rank}.pt"), 1)
    assert torch.equal(torch.cat([each.flatten() for each in found]), torch.ones(6))


def test_files_without_tensors_are_refused(tmp_path: Path) -> None:
    torch.save({"step": 3, "counts": torch.ones(3, dtype=torch.int64)}, tmp_path / "counts.pt")
    with pytest.raises(UserError, match="there is no tensor of floats"):
        sample_gradients.of_file(str(tmp_path / "counts.pt"), 0)
    (tmp_path / "text.pt").write_text("no tensors")
    for name in ("text.pt", "missing.pt"):
        with pytest.raises(UserError, match="torch cannot load it"):
            sample_gradients.of_file(str(tmp_path / name), 0)


def test_built_in_gradients_are_equal_in_each_process_and_differ_between_ranks() -> None:
    first, again, other = (sample_gradients.built_in(rank) for rank in (0, 0, 1))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert all(each.any() for each in first)

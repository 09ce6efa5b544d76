# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Restricts torch to one thread: sums are equal in each run, and nothing waits for a second thread on a busy
    machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def optimizers_keep_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers are not found. Many tests compare weights bit by bit, and the fused step rounds differently. The tests
    of `frontend/optimizers` switch the search on."""
    monkeypatch.setenv("AGSPEED_TUNE_OPTIMIZER", "off")

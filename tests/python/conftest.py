# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several folders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on one thread: equal sums in each run, and no waiting for a second thread on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

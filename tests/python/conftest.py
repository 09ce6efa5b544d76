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

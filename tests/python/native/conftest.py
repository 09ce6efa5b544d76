# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of native operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agspeed.backends import candidate


@pytest.fixture
def needs_native() -> Iterator[None]:
    """Skips the test without the native backend, and restores the number of torch's threads after it."""
    if reason := candidate("native").unavailable():
        pytest.skip(f"the native backend cannot run: {reason}")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)

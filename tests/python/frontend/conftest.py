# SPDX-License-Identifier: Apache-2.0
"""Resets Dynamo and closes sessions, so that limits, warnings and meters of one test do not affect another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agspeed import log
from agspeed.frontend import startup
from agspeed.frontend.live_sessions import live_sessions


@pytest.fixture(autouse=True, scope="session")
def machinery() -> None:
    """Tuning starts with the first step in every test. test_short_runs.py tests processes that have not loaded it."""
    startup.load_machinery()


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    log._seen.clear()
    torch.manual_seed(1234)
    yield
    for session in live_sessions():
        session.close()
    torch._dynamo.reset()

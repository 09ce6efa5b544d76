# SPDX-License-Identifier: Apache-2.0
"""Switches the search for optimizers on, as it is by default."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def optimizers_are_found(monkeypatch: pytest.MonkeyPatch, optimizers_keep_their_steps: None) -> None:
    monkeypatch.delenv("AGSPEED_TUNE_OPTIMIZER")

# SPDX-License-Identifier: Apache-2.0
"""Switches the search for optimizers on, as it is by default. Found optimizers are fused without timing in
`mode="deterministic"`, which keeps their own steps outside of these tests."""

from __future__ import annotations

import pytest

from agspeed.frontend.optimizers import search


@pytest.fixture(autouse=True)
def optimizers_are_found(monkeypatch: pytest.MonkeyPatch, optimizers_keep_their_steps: None) -> None:
    monkeypatch.delenv("AGSPEED_TUNE_OPTIMIZER")
    monkeypatch.setattr(search, "_PLAIN_MODES", frozenset())

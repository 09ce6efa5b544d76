# SPDX-License-Identifier: Apache-2.0
"""Torch's test package forbids its process to set flags of `torch.backends`. This lets later tests set them again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def settable_flags() -> Iterator[None]:
    # The globals of the module that `torch.backends` stands for.
    state = torch.backends.disable_global_flags.__globals__
    before = state["__allow_nonbracketed_mutation_flag"]
    yield
    state["__allow_nonbracketed_mutation_flag"] = before

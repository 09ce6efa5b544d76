# SPDX-License-Identifier: Apache-2.0
"""A fresh Dynamo for every test, so that recompile limits and warnings of one never reach another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agspeed import log


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    log.forget_warnings()
    torch.manual_seed(1234)
    yield
    torch._dynamo.reset()

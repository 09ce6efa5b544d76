# SPDX-License-Identifier: Apache-2.0
"""Test beds as a fixture. A bed ends with its test. A test is skipped, with the reason, if no bed can be built here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from agspeed import netbed

MakeNetbed = Callable[..., netbed.Netbed]


@pytest.fixture
def make_netbed() -> Iterator[MakeNetbed]:
    """`make_netbed(hosts=4, rails=2, rate="100mbit")` returns an open bed. It takes `netbed.Netbed`'s arguments."""
    reason = netbed.unavailable()
    if reason:
        pytest.skip(reason)
    with contextlib.ExitStack() as beds:
        yield lambda **description: beds.enter_context(netbed.Netbed(**description))

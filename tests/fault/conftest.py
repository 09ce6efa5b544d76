# SPDX-License-Identifier: Apache-2.0
"""Beds for tests: built on request, gone when the test ends, skipped with one reason where they are not possible."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from agspeed import netbed

MakeNetbed = Callable[..., netbed.Netbed]


@pytest.fixture
def make_netbed() -> Iterator[MakeNetbed]:
    """`make_netbed(hosts=4, rails=2, rate="100mbit")` is an open bed; arguments as for `netbed.Netbed`."""
    reason = netbed.unavailable()
    if reason:
        pytest.skip(reason)
    with contextlib.ExitStack() as beds:
        yield lambda **description: beds.enter_context(netbed.Netbed(**description))

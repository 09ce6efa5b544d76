# SPDX-License-Identifier: Apache-2.0
"""One server for all tests of this folder, with the definitions of the operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.python.cluster.kube import definitions, namespaces
from tests.python.support import kube_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kube_server.Server]:
    """A server that knows the operators' kinds and has the namespaces of the tests."""
    if reason := kube_server.why_none():
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("kube")
    with kube_server.server(folder) as found:
        definitions.install(found)
        namespaces.policies(found)
        for name in ("default", "team-a"):
            namespaces.prepare(found, name)
        yield found

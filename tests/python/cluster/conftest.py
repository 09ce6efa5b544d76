# SPDX-License-Identifier: Apache-2.0
"""Trainer's server, for tests of the progress of a TrainJob."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.python.cluster import trainer_server
from tests.python.cluster.trainer_server import TrainerServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("certificates")
    trainer_server.authority(folder)
    return folder


@pytest.fixture
def server(certificates: Path) -> Iterator[TrainerServer]:
    with trainer_server.running(certificates) as found:
        yield found

# SPDX-License-Identifier: Apache-2.0
"""The conditions that a report states fit its schema and need no torch."""

from __future__ import annotations

import subprocess
import sys

from agspeed.reporting import environment, model


def test_description_completes_a_header():
    data = model.empty_report("m")
    data["header"] |= environment.describe()
    model.validate(data)
    assert data["header"]["machine"]["cores"] >= 1
    assert data["header"]["versions"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")


def test_rank_and_world_size_come_from_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (environment.describe()["rank"], environment.describe()["world_size"]) == (3, 8)
    monkeypatch.setenv("RANK", "not a number")
    assert environment.describe()["rank"] is None


def test_describing_does_not_load_torch():
    script = "import sys; from agspeed.reporting import environment as e; e.describe(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

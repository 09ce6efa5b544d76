# SPDX-License-Identifier: Apache-2.0
"""All scenarios of `scenarios.py`, under Horovod's API and under DistributedDataParallel, started as users do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agspeed import native
from tests.lint import sources
from tests.python.elastic.scenario_training import alone, write_hosts
from tests.python.elastic.scenarios import SCENARIOS
from tests.python.launch.jobs import Job
from tests.python.launch.trainings import script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]
_TIMEOUT_S = 400
"""Loading torch takes long on a busy machine."""
_ALWAYS = {
    ("hosts come and go", "horovod", "exit"),
    ("all ranks of rank 0's host fail at once", "horovod", "exit"),
    ("the minimum is kept by newcomers when a host leaves", "horovod", "exit"),
    ("all ranks of a host fail at once", "ddp", "SIGKILL"),
}
"""The other cases are thorough."""


def _cases() -> Iterator[object]:
    for name, scenario in SCENARIOS.items():
        for face in scenario.faces:
            for way in ("exit", "SIGKILL") if scenario.has_failures else ("exit",):
                marks = [] if (name, face, way) in _ALWAYS else [pytest.mark.thorough]
                label = f"{name}-{face}" + (f"-{way}" if scenario.has_failures else "")
                yield pytest.param(name, face, way, marks=marks, id=label)


def _sizes_of(groups: dict[int, int]) -> tuple[int, ...]:
    """The sizes of groups, by their numbers, without those through which a job has grown."""
    sizes = [groups[number] for number in sorted(groups)]
    edges = zip([0, *sizes], sizes, [*sizes[1:], 0], strict=False)
    return tuple(size for before, size, after in edges if not 0 < before < size < after)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """The weights after the training in one process."""
    return alone()


@pytest.mark.timeout(_TIMEOUT_S + 60)
@pytest.mark.parametrize(("name", "face", "way"), _cases())
def test_a_job_gets_over_changes(
    tmp_path: Path, weights: dict[str, torch.Tensor], name: str, face: str, way: str
) -> None:
    scenario = SCENARIOS[name]
    notes = tmp_path / "members"
    notes.mkdir()
    write_hosts(tmp_path, scenario.hosts)
    first, least, most = scenario.limits
    where = ["-H", ",".join(scenario.hosts)]
    if not scenario.is_fixed:
        where = ["--host-discovery-script", str(script(tmp_path, f"cat {tmp_path}/hosts"))]
    options = [*where, "--min-np", str(least), "--max-np", str(most), *scenario.options]
    program = Path(__file__).with_name("scenario_training.py")
    with Job(tmp_path) as job:
        job.environment["PYTHONPATH"] += f":{sources.ROOT}"
        command = [sys.executable, str(program), face, name, way, str(tmp_path)]
        status = job.start(first, "", *options, command=command).wait(_TIMEOUT_S)
        job.waits_for_nothing_left()
        errors = job.errors()
    words = {path.name: path.read_text().split("\n")[:-1] for path in notes.iterdir() if path.name.isdecimal()}
    begun = [tuple(map(int, line.split()[1:])) for lines in words.values() for line in lines if " " in line]
    assert _sizes_of({number: size for number, _, size, _ in begun}) == scenario.sizes, errors
    assert not scenario.steps_kept.intersection(step for _, _, _, step in begun), begun
    assert scenario.says in errors, errors
    if scenario.fails:
        assert status != 0 and scenario.fails in errors, errors
        return
    assert status == 0, errors
    ended = [torch.load(notes / f"{pid}.pt") for pid, lines in words.items() if lines[-1] == "done"]
    assert len(ended) == scenario.sizes[-1], errors
    for found in ended:
        torch.testing.assert_close(found, ended[0], rtol=0, atol=0)
        torch.testing.assert_close(found, weights, rtol=1e-9, atol=1e-12)

# SPDX-License-Identifier: Apache-2.0
"""Jobs that torchrun restarts connect again, although its store keeps the keys of earlier attempts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agspeed import native
from tests.python.distributed.edges.torchrun import torchrun

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
    pytest.mark.slow,
]

#: In the first attempt one rank exits once the other one has reached the store, as far as it can see.
PROGRAM = """
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 0 and rank == {victim}:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    num_keys, limit = store.num_keys(), time.monotonic() + 3
    (folder / "looks").touch()
    while store.num_keys() == num_keys and time.monotonic() < limit:
        time.sleep(0.01)
    sys.exit(1)
while not (folder / "looks").exists():
    time.sleep(0.01)
for _ in range(2):  # worlds may follow each other within an attempt, too
    dist.init_process_group("agspeed", timeout=datetime.timedelta(seconds=20))
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    dist.barrier()
    dist.destroy_process_group()
(folder / f"sum-{{rank}}").write_text(f"{{attempt}} {{value.item()}}")
"""


def _static_rendezvous() -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return ["--master-addr", "127.0.0.1", "--master-port", str(server.getsockname()[1])]


@pytest.mark.parametrize(("victim", "is_static"), [(0, False), (1, False), (1, True)])
def test_a_job_recovers_from_a_rank_that_ended_before_its_group_was_made(
    tmp_path: Path, victim: int, is_static: bool
) -> None:
    rendezvous = _static_rendezvous() if is_static else ["--standalone"]
    run = torchrun(tmp_path, PROGRAM.format(victim=victim), "--max-restarts", "3", *rendezvous)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in range(2)] == ["1 3.0", "1 3.0"]

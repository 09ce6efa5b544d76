# SPDX-License-Identifier: Apache-2.0
"""A member that needs no torch, with the arguments and the notes of `benchmarks.elastic.training`.

It counts steps, and has no weights. It notices the loss of another member only by the launcher.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from agspeed.elastic import control
from agspeed.membership.coordinator import Position


def main() -> None:
    folder, pause = Path(sys.argv[1]), float(sys.argv[2])
    connection = control.of_this_process()
    assert connection is not None
    number, step, has_state = 0, 0, False
    with (folder / str(os.getpid())).open("a", buffering=1, encoding="ascii") as file:
        while (
            place := connection.next_place(number, Position(has_state, step, (folder / "stop").exists()))
        ) is not None:
            number, has_state = place.number, True
            connection.synced(number)
            print("epoch", time.monotonic(), place.rank, place.size, step, file=file)
            while not connection.wants_change and not (folder / "stop").exists():
                time.sleep(pause)
                step += 1
                print("step", time.monotonic(), step, file=file)
        print("end", time.monotonic(), step, "none", file=file)


if __name__ == "__main__":
    main()

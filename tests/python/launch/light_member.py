# SPDX-License-Identifier: Apache-2.0
"""A member of an elastic job that needs no torch: it counts steps until the file FOLDER/stop exists.

It writes to FOLDER/HOST.PID, one line at a time: "epoch NUMBER RANK SIZE" when it begins an epoch, and at its end
"left" or "done". FOLDER/steps/PID has the newest step, and FOLDER/keys/PID a digest of the job's key. While the file
FOLDER/prints exists, each step prints 10,000 bytes.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

from agspeed.elastic import control
from agspeed.membership.coordinator import Position


def main() -> None:
    folder = Path(sys.argv[1])
    stop = folder / "stop"
    connection = control.of_this_process()
    assert connection is not None
    number, step, has_state = 0, 0, False
    for name in ("keys", "steps"):
        (folder / name).mkdir(exist_ok=True)
    steps = folder / "steps" / str(os.getpid())
    key = Path(os.environ["AGSPEED_JOB_KEY_FILE"]).read_bytes()
    (folder / "keys" / steps.name).write_text(hashlib.sha256(key).hexdigest())
    with (folder / f"{os.environ['HOROVOD_HOSTNAME']}.{os.getpid()}").open("a", buffering=1) as file:
        while (place := connection.next_place(number, Position(has_state, step, stop.exists()))) is not None:
            number, has_state = place.number, True
            connection.synced(number)
            print("epoch", number, place.rank, place.size, file=file)
            while not connection.wants_change and not stop.exists():
                time.sleep(0.01)
                step += 1
                steps.write_text(str(step))
                if (folder / "prints").exists():
                    print(f"{step:9999}")
        print("done" if stop.exists() else "left", file=file)


if __name__ == "__main__":
    main()

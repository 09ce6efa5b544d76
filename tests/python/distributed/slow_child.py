# SPDX-License-Identifier: Apache-2.0
"""A slow compile child, started as `agspeed.tuning.child.worker` is."""

from __future__ import annotations

import sys
import time
from typing import Any

from agspeed.tuning.child import worker

_SECONDS = 4


def main() -> int:
    run = worker._run

    def slowly(job: dict[str, Any]) -> dict[str, Any]:
        time.sleep(_SECONDS)
        return run(job)

    worker._run = slowly
    return worker.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

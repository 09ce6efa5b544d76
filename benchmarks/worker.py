# SPDX-License-Identifier: Apache-2.0
"""One measuring process: reads a spec (JSON file), pins itself, measures, writes the result (JSON file).

Started by run.py with `python -m benchmarks.worker SPEC RESULT`. Threads and cores are set before torch is imported.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(spec_path: str, result_path: str) -> int:
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    from benchmarks.measure.machine import pin

    spec["cores"] = pin(spec["threads"])
    os.environ.update(environment(spec))
    import torch

    from benchmarks import kinds

    torch.set_num_threads(spec["threads"])
    result = kinds.load(spec["case"]["kind"]).measure(spec)
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")
    return 0


def environment(spec: dict[str, Any]) -> dict[str, str]:
    """Thread counts, caches of this cell's own (Inductor's key ignores the thread count), and no downloads."""
    threads = str(spec["threads"])
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TORCHINDUCTOR_CACHE_DIR": f"{spec['cache_dir']}/inductor",
        "AGSPEED_CACHE_DIR": f"{spec['cache_dir']}/agspeed",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

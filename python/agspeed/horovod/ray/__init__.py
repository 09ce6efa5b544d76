# SPDX-License-Identifier: Apache-2.0
"""Horovod's RayExecutor: runs functions at the ranks of a job, which are actors of a Ray cluster.

    from agspeed.horovod.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=4, cpus_per_worker=2)
    executor.start()
    results = executor.run(train)      train() calls hvd.init()
    executor.shutdown()

Names, arguments and defaults follow Horovod's `horovod/ray/runner.py`. Importing this package does not import Ray.
"""

from __future__ import annotations

from agspeed.horovod.ray.executor import RayExecutor, Settings

__all__ = ["RayExecutor", "Settings"]

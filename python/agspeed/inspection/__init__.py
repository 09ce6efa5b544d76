# SPDX-License-Identifier: Apache-2.0
"""Looks into a job that hangs, while it lasts: what each rank of this host waits for, and the likely cause.

`points.py` asks the ranks, `model.py` checks their answers, `processes.py` asks the kernel, `causes.py` compares the
ranks, and `text.py` describes them. Imports neither torch nor the extension.
"""

from agspeed.inspection.jobs import jobs_of

__all__ = ["jobs_of"]

# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job on this host, for `agspeed run`: needs neither torch nor the native extension.

local.py     the processes: their environment, their output, the first that fails
job_key.py   the secret of a job, in memory that only its ranks hold
arguments.py horovodrun's flags, and what each of them means here
"""

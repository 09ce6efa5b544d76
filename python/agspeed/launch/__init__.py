# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job on this host, for `agspeed run`. It needs neither torch nor the native extension.

local.py     runs a job: the environment of its ranks, their output, the first rank that fails
job_key.py   the secret of a job, in memory that only its ranks can read
arguments.py horovodrun's flags, and the meaning of each one here
"""

# SPDX-License-Identifier: Apache-2.0
"""Compiles in a child process: `queue` orders the jobs, `process` owns the child, and `worker` runs in the child."""

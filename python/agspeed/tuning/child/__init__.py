# SPDX-License-Identifier: Apache-2.0
"""Compiling in a child process: `queue` says what comes next, `process` owns the child, `worker` is what runs in it."""

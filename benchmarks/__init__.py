# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of agspeed: real training workloads, declarative cases, one runner. Start with README.md."""

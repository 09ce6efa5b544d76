# SPDX-License-Identifier: Apache-2.0
"""Writes reports and benchmark results as self-contained HTML: `page`, `bench_page`, and their drawing modules."""

# SPDX-License-Identifier: Apache-2.0
"""Report and benchmark results as self-contained HTML: `page`, `bench_page`, and what they draw with."""

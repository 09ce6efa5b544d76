# SPDX-License-Identifier: Apache-2.0
"""The report and the benchmark's results as self-contained HTML pages: `page`, `bench_page`, and what they draw with."""

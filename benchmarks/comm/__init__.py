# SPDX-License-Identifier: Apache-2.0
"""The building blocks of cases of kind "comm": networks, bounds, ranks and the functions that ranks run.

See benchmarks/README.md.
"""

# SPDX-License-Identifier: Apache-2.0
"""One command that tries agspeed on a machine with a GPU: ``python -m benchmarks.gpu_check --out DIR``."""

# SPDX-License-Identifier: Apache-2.0
"""Finds the optimizers of optimized models and tunes their steps: `search.py` finds them, `session.py` tunes one."""

# SPDX-License-Identifier: Apache-2.0
"""The numerics gate: `check` compares a candidate with the reference; the other modules implement its parts."""

# SPDX-License-Identifier: Apache-2.0
"""Instruments shared by every kind of benchmark: pairing, statistics, machine state, memory, candidates."""

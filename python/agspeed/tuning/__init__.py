# SPDX-License-Identifier: Apache-2.0
"""Tuning: compiling candidates, checking them, measuring them on real steps, and deciding."""

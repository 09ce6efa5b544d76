# SPDX-License-Identifier: Apache-2.0
"""Tuning: compiles candidates, checks them, measures them on real training steps, and decides which one runs."""

# SPDX-License-Identifier: Apache-2.0
"""Compares captured graphs with the user's own module in real training steps."""

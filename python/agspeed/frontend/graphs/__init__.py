# SPDX-License-Identifier: Apache-2.0
"""Transforms captured graphs before they become regions."""

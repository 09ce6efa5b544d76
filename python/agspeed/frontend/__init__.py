# SPDX-License-Identifier: Apache-2.0
"""Captures the user's module or step function as regions, and runs them by the tuner's plans and decisions."""

from agspeed.frontend import startup as startup  # must be imported first: it times the imports after it

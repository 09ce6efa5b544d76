# SPDX-License-Identifier: Apache-2.0
"""Capture and control: from the user's module or step function to regions, plans and decisions."""

from agspeed.frontend import startup as startup  # first: it times what is imported after it

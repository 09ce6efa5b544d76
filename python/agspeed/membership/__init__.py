# SPDX-License-Identifier: Apache-2.0
"""Which processes belong to an elastic job, and when. The launcher decides it; the processes ask for it.

`coordinator.py` decides, `actions.py` has its decisions, and `messages.py` the messages between both sides. Imports
neither torch nor the extension.
"""

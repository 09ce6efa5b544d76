# SPDX-License-Identifier: Apache-2.0
"""Which processes belong to an elastic job, and when. The launcher decides it; the processes ask for it.

`coordinator.py` decides, `messages.py` has the messages between both sides. Imports neither torch nor the extension.
"""

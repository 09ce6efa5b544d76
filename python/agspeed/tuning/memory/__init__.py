# SPDX-License-Identifier: Apache-2.0
"""The memory of training on the CPU: its peaks, and whether agspeed keeps freed blocks for the next step."""

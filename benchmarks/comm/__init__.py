# SPDX-License-Identifier: Apache-2.0
"""What the cases of kind "comm" are made of: networks, bounds, ranks and what they run. See README.md above."""
